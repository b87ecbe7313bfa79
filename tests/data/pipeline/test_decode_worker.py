"""A process that decodes for another one, by itself."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cprompt.data.pipeline.decode_worker import decode_file, serve
from cprompt.data.pipeline.inspection import is_blank


def test_each_file_is_answered_until_the_requests_end(tmp_path: Path) -> None:
    for name, size in {"a.png": (3, 4), "b.png": (30, 20)}.items():
        Image.new("RGB", size, "red").save(tmp_path / name)
    requests = [(8, is_blank), [tmp_path / "a.png", tmp_path / "absent.png"], [tmp_path / "b.png"]]
    replies = io.BytesIO()
    with pytest.raises(EOFError):
        serve(io.BytesIO(b"".join(pickle.dumps(each) for each in requests)), replies)
    replies.seek(0)
    for name, shape in {"a.png": (4, 3, 3), "absent.png": None, "b.png": (8, 12, 3)}.items():
        reply = pickle.load(replies)
        if shape is None:
            assert reply is None
            continue
        assert reply == (shape, True)
        pixels = np.frombuffer(replies.read(int(np.prod(shape))), np.uint8).reshape(shape)
        np.testing.assert_array_equal(pixels, decode_file(tmp_path / name, 8, is_blank)[0])
    assert replies.read() == b""


def test_what_a_process_imports_is_light() -> None:
    """Torch alone would take seconds."""
    names = "cprompt.data.pipeline.decode_worker, cprompt.data.pipeline.inspection"
    code = f"import sys, {names}; sys.exit('torch' in sys.modules or 'timm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=30).returncode == 0
