from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bat_agent.agents import load_agent
from bat_agent.evaluate import evaluate
from bat_env.errors import ConfigError, UnknownNameError

CODE = """
from beside_it import NAME

class Steady:
    def reset(self, observation, info):
        pass

    def act(self, observation):
        return {"name": "submit_results", "arguments": {}}

class Needy(Steady):
    def __init__(self, model):
        self.model = model

class Refuses(Steady):
    def reset(self, observation, info):
        from bat_env.errors import ConfigError
        raise ConfigError("no key for the endpoint")

def steady():
    return Steady()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "steady_agent.py").write_text(CODE)
    (tmp_path / "beside_it.py").write_text("NAME = 'x'\n")
    (tmp_path / "broken_agent.py").write_text("import no_such_package\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.mark.parametrize("where", ["steady_agent", "steady_agent.py", "{}/steady_agent.py"])
def test_a_class_is_an_agent(where: str, folder: Path) -> None:
    source = load_agent(f"{where.format(folder)}:Steady")
    assert source.name == "Steady" and source.checkpoint is None and source.make is not None
    assert source.make().act({}) == {"name": "submit_results", "arguments": {}}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("steady_agent.py:Stedy", "Did you mean 'Steady'"),
        ("stedy_agent.py:Steady", "Did you mean 'steady_agent.py'"),
        ("no_such_module_here:Steady", "ModuleNotFoundError"),
        ("broken_agent.py:Steady", "no_such_package"),
        ("steady_agent.py:steady", "reset and act"),
        ("steady_agent.py:Needy", "without arguments.*model"),
        ("steady_agent.py:", "Name both"),
    ],
)
def test_a_wrong_class_is_named(name: str, message: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        load_agent(name)


def test_the_example_loads() -> None:
    file = Path(__file__).resolve().parents[2] / "examples" / "custom_agent.py"
    assert load_agent(f"{file}:Careful").name == "Careful"
    with pytest.raises(UnknownNameError, match="Did you mean 'Careful'"):
        load_agent(f"{file}:Carefull")


def test_a_configuration_error_in_an_episode_is_no_infrastructure(folder: Path) -> None:
    source = load_agent("steady_agent.py:Refuses")
    with pytest.raises(ConfigError, match="no key"):
        evaluate(source, suite="seg-mini", repeats=1, sandbox="local")
