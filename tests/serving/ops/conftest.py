import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
