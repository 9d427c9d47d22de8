"""Help, completion and answers to typos come without torch, whose import takes seconds."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CALLS = [
    ["--version"],
    ["--help"],
    ["run", "--help"],
    ["flower", "plan", "--help"],
    ["runn"],
    ["run", "--roundz", "3"],
    ["run", "--rounds", "x"],
    ["run", "--method", "scafold"],
    ["compare", "--methods", "fedavg; scafold @ lr=1"],
    ["run", "--model", "lenett"],
    ["run", "--split", "shrads:2"],
    ["run", "--metrics", "f1"],
    ["run", "--data", "digitz"],
    ["run", "--protocol", "fedbab"],
    ["reproduce", "fedbab/table5"],
    ["list", "methods", "scafold"],
    ["list", "data", "digitz"],
    ["run", "--resume", "x", "--lr", "1"],
    ["list"],
    ["list", "metods"],
    ["recipe", "--explain"],
    ["recipe", "--rounds", "3"],
]
PROGRAM = """
import contextlib, io, json, os, sys
from fedloom.cli import main

def call(arguments):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            main(arguments)
        except SystemExit as ended:
            return ended.code

codes = [call(arguments) for arguments in json.loads(sys.argv[1])]
os.environ.update(_FEDLOOM_COMPLETE="complete_bash", COMP_WORDS="fedloom run --method sca", COMP_CWORD="3")
call([])
print(json.dumps([codes, [name for name in ("torch", "numpy", "pandas", "scipy") if name in sys.modules]]))
"""


BUILT = """
import sys
from fedloom.cli import main
from fedloom.recipe import Data, Deploy, LocalOptimizer, Recipe, SecAgg

try:
    main(sys.argv[1:])
except SystemExit:
    built = [model.__name__ for model in (Data, Deploy, LocalOptimizer, Recipe, SecAgg) if model.__pydantic_complete__]
    print("built", built, [name for name in ("importlib.metadata",) if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["run", "--help"], ["run", "--method", "scafold"]])
def test_help_and_unknown_names_build_no_validator_which_takes_longer_than_the_answer(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", BUILT, *words], check=True, capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1] == "built [] []"


def test_help_completion_and_typos_import_no_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(CALLS)], check=True, capture_output=True, text=True, timeout=60
    )
    codes, imported = json.loads(done.stdout)
    assert imported == []
    wrong = [words for words in CALLS if words in CALLS[4:18] or words == ["list", "metods"]]
    assert codes == [2 if words in wrong else 0 for words in CALLS]
