"""Execute the notebooks: each `NN_name.py` (percent format) becomes `NN_name.ipynb` with its outputs.

    python notebooks/execute.py [NN_name.py ...]

Needs `pip install '.[notebooks]'`. What depends on the machine or the moment (timings, versions, paths) is not kept.
"""

import os
import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent


def execute(source: Path) -> Path:
    """Run one notebook from top to bottom; an error in a cell is raised, and a line on stderr is an error."""
    notebook = jupytext.read(source)
    NotebookClient(notebook, timeout=900, kernel_name="python3", record_timing=False).execute()
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:02d}"
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                raise RuntimeError(f"{source.name} wrote to stderr: {output['text'][:500]}")
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = nbformat.from_dict({"kernelspec": kernel, "language_info": {"name": "python"}})
    target = source.with_suffix(".ipynb")
    nbformat.write(notebook, target)
    return target


def main(names: list[str]) -> None:
    os.environ["MPLBACKEND"] = "Agg"
    for source in [Path(name) for name in names] or sorted(FOLDER.glob("[0-9]*.py")):
        print(execute(source))


if __name__ == "__main__":
    main(sys.argv[1:])
