"""A loader per dataset: CIFAR-100, ImageNet-R, Stanford Cars, DomainNet, folders, drawn shapes."""
