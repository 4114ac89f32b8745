"""The tutorials run from start to end, with small numbers, and become pages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
TOOLS = TUTORIALS.parent / "tools"
# A cell that fails must fail the page; this runs in a process of its own because tutorials change folders.
RENDER = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from cells import page, run
text, pictures = page(run(Path(sys.argv[2])), "name")
print(len(pictures), text, sep="\\n")
"""


def render(script: Path) -> str:
    environment = os.environ | {"SCALEGMN_QUICK": "1", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error::UserWarning"}
    command = [sys.executable, "-c", RENDER, str(TOOLS), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("script", sorted(TUTORIALS.glob("*.py")), ids=lambda path: path.stem)
def test_tutorial_runs(script: Path) -> None:
    found = render(script)
    count, _, text = found.partition("\n")
    assert text.startswith("# ")
    assert text.count("![") == int(count)
    assert '<div class="output"><pre>' in text


def test_a_cell_that_fails_is_named_by_its_line(tmp_path: Path) -> None:
    script = tmp_path / "bad.py"
    script.write_text("# %% [markdown]\n# # Title\n# %%\nx = 1\n# %%\nassert x == 2\n")
    with pytest.raises(AssertionError, match=r"bad.py\", line 6"):
        render(script)


def test_a_cell_that_writes_a_file_is_shown_as_the_file(tmp_path: Path) -> None:
    script = tmp_path / "file.py"
    cells = (
        "from pathlib import Path\n",
        "Path(\"a.toml\").write_text('''\\\nx = 1\n''')\n",
        'print(Path("a.toml").read_text())\n',
    )
    script.write_text("# %% [markdown]\n# # Title\n# %%\n" + "# %%\n".join(cells))
    text = render(script)
    assert '```toml title="a.toml"\nx = 1\n```' in text
    assert "<pre>x = 1</pre>" in text
