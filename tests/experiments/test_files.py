import json
import math

import numpy as np
import pytest
import xarray as xr

from amp_attention.experiments import (
    ForeignFileError,
    ResultFolder,
    columns,
    command_line,
    dataset,
    plain,
    point_rows,
    run_rows,
    to_csv,
    to_json,
    to_netcdf,
    versions,
)


def test_json_has_no_nan_and_full_precision():
    document = {"a": math.nan, "b": [math.inf, 0.1 + 0.2], "c": np.float64(1 / 3), "d": np.arange(2), "e": None}
    found = json.loads(to_json(document))
    assert found == {"a": None, "b": [None, 0.1 + 0.2], "c": 1 / 3, "d": [0, 1], "e": None}
    assert plain(np.bool_(True)) is True


def test_own_files_are_replaced_and_foreign_ones_are_not(tmp_path):
    folder = ResultFolder(tmp_path / "new" / "results")
    folder.write("a.csv", "1\n")
    again = ResultFolder(tmp_path / "new" / "results")
    again.claim(["a.csv", "b.csv"])
    again.write("a.csv", "2\n")
    assert (again.path / "a.csv").read_text() == "2\n"

    (again.path / "b.csv").write_text("somebody else's")
    with pytest.raises(ForeignFileError, match=r"b\.csv"):
        ResultFolder(again.path).claim(["b.csv"])
    with pytest.raises(ForeignFileError):
        ResultFolder(again.path).write("b.csv", "mine")
    assert (again.path / "b.csv").read_text() == "somebody else's"


def test_a_file_edited_since_is_foreign(tmp_path):
    ResultFolder(tmp_path).write("a.csv", "1\n")
    (tmp_path / "a.csv").write_text("1, with notes\n")
    with pytest.raises(ForeignFileError):
        ResultFolder(tmp_path).claim(["a.csv"])
    ResultFolder(tmp_path, overwrite=True).write("a.csv", "3\n")
    assert (tmp_path / "a.csv").read_text() == "3\n"


def test_a_folder_is_left_without_temporary_files(tmp_path):
    ResultFolder(tmp_path).write("a.csv", "1\n")
    assert sorted(file.name for file in tmp_path.iterdir()) == [".amp-attention.json", "a.csv"]


def test_a_broken_manifest_protects_everything(tmp_path):
    ResultFolder(tmp_path).write("a.csv", "1\n")
    (tmp_path / ".amp-attention.json").write_text("{")
    with pytest.raises(ForeignFileError):
        ResultFolder(tmp_path).claim(["a.csv"])


def test_the_command_line_can_be_pasted():
    assert command_line(["amp", "--out", "my results"]) == "amp-attention amp --out 'my results'"
    assert {"python", "jax", "amp-attention"} <= versions().keys()


POINTS = [
    {
        "alpha": 0.5,
        "lam": lam,
        "result": "successful",
        "m": lam + 1,
        "stable": True,
        "standard_error": {"m": 0.1},
        "runs": [{"repeat": i, "m": lam + i, "result": "successful"} for i in range(2)],
    }
    for lam in (0.1, 0.2)
]


def test_tables_have_a_row_a_point_and_a_row_a_run():
    rows = point_rows(POINTS)
    assert columns(rows) == ["alpha", "lam", "result", "m", "stable", "m_standard_error"]
    assert to_csv(rows, columns(rows)).splitlines()[1] == "0.5,0.1,successful,1.1,True,0.1"
    assert [row["m"] for row in run_rows(POINTS)] == [0.1, 1.1, 0.2, 1.2]


def test_unknown_entries_of_a_table_are_empty():
    assert to_csv([{"a": math.nan, "b": None}, {"c": 1}], ["a", "b", "c"]) == "a,b,c\n,,\n,,1\n"


def test_a_comparison_keeps_its_engines_apart():
    point = {"alpha": 0.5, "lam": 0.1, "result": "successful", "state_evolution": {"m": 1.0}, "amp": POINTS[0]}
    assert point_rows([point | {"train": None}])[0]["amp_m_standard_error"] == 0.1
    assert [row["engine"] for row in run_rows([point])] == ["amp", "amp"]


def test_netcdf_comes_back(tmp_path):
    found = dataset(POINTS, {"alpha": [0.5], "lam": [0.1, 0.2, 0.3]}, {"command_line": "x"})
    file = ResultFolder(tmp_path).write("grid.nc", to_netcdf(found))
    with xr.open_dataset(file, engine="h5netcdf") as back:
        assert back.attrs["command_line"] == "x"
        assert back.m.dims == ("alpha", "lam")
        np.testing.assert_allclose(back.m, [[1.1, 1.2, np.nan]])
        assert back.m.attrs["long_name"] == "Tr(S S0)/d"
        assert back.run_m.dims == ("alpha", "lam", "repeat")
        np.testing.assert_allclose(back.run_m.sel(lam=0.2), [[0.2, 1.2]])
        assert back.result.values[0].tolist() == ["successful", "successful", ""]
