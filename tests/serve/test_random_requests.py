"""Random requests made from the OpenAPI description: none ends in a 5xx or in what is not in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from cprompt.serve.config import Limits
from tests.serve.common import BLUE, RED, image
from tests.serve.fake import FakeClassifier
from tests.serve.live import running

EXAMPLES = 20  # per operation
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def description(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[schemathesis.BaseSchema]:
    model = tmp_path_factory.mktemp("described") / "model"
    fake = FakeClassifier()
    fake.learn([(image(RED), "red"), (image(BLUE), "blue")])
    fake.save(model)
    limits = Limits(max_jobs=10_000)  # a full queue is a 503, which is not what is looked for
    with running(model, settings={"limits": limits}, load=FakeClassifier.load) as url:
        yield schemathesis.openapi.from_url(f"{url}/openapi.json")


@pytest.mark.parametrize("mode", schemathesis.GenerationMode)
def test_nothing_made_from_the_description_breaks_the_service(
    description: schemathesis.BaseSchema, mode: schemathesis.GenerationMode
) -> None:
    """As it is described, and not as it is described."""
    tried: dict[str, int] = {}
    for result in description.get_all_operations():
        operation = result.ok()

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def check(case: schemathesis.Case) -> None:
            tried[case.operation.label] = tried.get(case.operation.label, 0) + 1
            case.call_and_validate(checks=CHECKS)

        try:
            check()
        except Unsatisfiable:  # nothing about this operation can be wrong
            assert mode is schemathesis.GenerationMode.NEGATIVE
    described = sum(len(methods) for methods in description.raw_schema["paths"].values())
    assert described > 10
    if mode is schemathesis.GenerationMode.POSITIVE:
        assert len(tried) == described
    assert tried["POST /v1/predict"] >= EXAMPLES
