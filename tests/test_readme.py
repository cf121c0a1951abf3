"""The README's commands and its example are what they say."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def marked(name):
    """The one line of the block behind a marker."""
    (line,) = re.findall(rf"<!-- {name} -->\n```bash\n(.*)\n```\n<!-- end -->", README)
    return line


def example():
    """The first one; the others go on from it."""
    return re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]


def test_the_first_screen_has_both_commands():
    first_screen = "\n".join(README.splitlines()[:30])
    assert marked("run command") in first_screen
    assert marked("test command") in first_screen
    assert '-m "not slow and not gpu"' in marked("test command")


def test_the_run_command_is_understood():
    from amp_attention.cli import app

    program, *arguments = shlex.split(marked("run command").split("&&")[-1])
    assert program == "amp-attention"
    assert arguments[0] == "compare"
    _, bound, ignored = app.parse_args(arguments, exit_on_error=False, print_error=False)
    assert bound.arguments["problem"].lams() == pytest.approx((0.02, 0.0584804, 0.1709976, 0.5), rel=1e-5)
    assert not ignored


def test_the_example_imports_what_exists():
    blocks = "\n".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL))
    imports = [line for line in blocks.splitlines() if line.startswith(("import", "from"))]
    exec("\n".join(imports), {})


def test_every_result_is_explained():
    from amp_attention._solution import _NAMES

    assert all(f"`{name}`" in README for name in _NAMES)


@pytest.mark.slow
def test_the_example_runs():
    done = subprocess.run([sys.executable, "-c", example()], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) < 1e-4
