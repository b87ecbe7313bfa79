"""A model folder behind HTTP: predictions, learning in the background, and a web page.

`app.create_app` builds the service and `routes` says what it answers. Nothing here trains or
predicts: that is `cprompt.classifier`, which never imports this package.
"""
