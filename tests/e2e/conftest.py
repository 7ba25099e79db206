import pytest

from harness import Server


@pytest.fixture(scope="module")
def server():
    with Server() as running:
        yield running
        assert running.stop() == 0, running.output()
        assert running.leftovers() == []
