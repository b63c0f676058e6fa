"""What `tests/support/other_rounding` does to products: if it did nothing, the tests that run under it would show nothing."""

import json
import os
import subprocess
import sys

import nbformat
import numpy as np
import pytest
from rounding import other_rounding

from tools.authoring.execute import execute

# Small integers: each product is exact on every processor. Two elements of it are zero.
A, B = np.arange(16).reshape(4, 4) - 5, np.array([[1, 2, 0, 3], [4, -1, 0, 2], [0, 5, 0, 1], [3, 1, 0, -2]])
PRODUCTS = f"""
import json, torch, triton, triton.language as tl
import torch.nn.functional as F

@triton.jit
def kernel(a, b, out):
    at = tl.arange(0, 4)[:, None] * 4 + tl.arange(0, 4)[None, :]
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at), input_precision="ieee"))
    tl.store(out + 16 + tl.arange(0, 4), tl.sum(tl.load(b + at), axis=1))

def results(dtype):
    a, b, zero = torch.tensor({A.tolist()}, dtype=dtype), torch.tensor({B.tolist()}, dtype=dtype), torch.zeros(4, 4, dtype=dtype)
    out = torch.zeros(5, 4, dtype=dtype)
    assert torch.equal(a @ b, a @ b), "the same product differs from one time to the next"
    yield "matmul", a @ b
    yield "linear", F.linear(a[None], b.T)[0]
    yield "linear with a bias", F.linear(a[None], b.T, zero[0])[0]
    yield "einsum", torch.einsum("nij,njk->nik", a[None], b[None])[0]
    yield "baddbmm", torch.baddbmm(zero[None], a[None], b[None])[0]
    yield "mm out", torch.mm(a, b, out=out[:4])
    yield "addmm_", torch.zeros_like(zero).addmm_(a, b)
    yield "mv", torch.stack([a @ column for column in b.T], dim=1)
    yield "dot", torch.stack([torch.stack([row @ column for column in b.T]) for row in a])
    if dtype == torch.float32:
        kernel[(1,)](a, b, out)
        yield "tl.dot", out[:4]
        yield "tl.sum", out[4]
        same = torch.ones(1, 1, 4, 4)
        yield "attention", F.scaled_dot_product_attention(same, same, b[None, None].float())[0, 0]

print(json.dumps([[str(dtype)[6:], name, found.tolist()]
                  for dtype in (torch.float32, torch.float64, torch.bfloat16) for name, found in results(dtype)]))
"""
EPSILON = {"float32": 2.0**-24, "float64": 2.0**-53, "bfloat16": 2.0**-8}


def products(tmp_path, number):
    script = tmp_path / "products.py"
    script.write_text(PRODUCTS)
    environment = os.environ | other_rounding(number) | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return json.loads(done.stdout)


def test_each_element_is_off_by_one_unit_in_the_last_place(tmp_path):
    found = products(tmp_path, 1)
    assert len(found) == 3 * 9 + 3
    for dtype, name, result in found:
        exact = {"tl.sum": B.sum(1), "attention": np.tile(B.mean(0), (4, 1))}.get(name, A @ B)
        off = (np.array(result) - exact) / np.where(exact == 0, 1, np.abs(exact))
        assert not off[exact == 0].any(), (dtype, name)
        units = np.abs(off[exact != 0]) / EPSILON[dtype]
        # 1 where the mantissa is largest or towards zero from a power of two, 2 where it is least.
        assert ((units >= 0.99) & (units <= 2)).all(), (dtype, name, units)
        assert name in ("tl.sum", "attention") or len(set(np.sign(off[exact != 0]))) == 2, (dtype, name)
    assert found != products(tmp_path, 2)


@pytest.mark.slow
@pytest.mark.xdist_group("notebooks")
@pytest.mark.usefixtures("warm_kernels")
def test_a_kernel_and_the_processes_it_starts_round_otherwise(monkeypatch):
    shown = "import torch; print((torch.full((2, 2), 3.0) @ torch.eye(2)).tolist())"
    started = f"import subprocess, sys; print(subprocess.check_output([sys.executable, '-c', {shown!r}], text=True))"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in (shown, started)])

    def outputs():
        return [json.loads(cell.outputs[0].text) for cell in execute(notebook, "solutions/99_toy").notebook.cells]

    if "LESSONS_ROUNDING" not in os.environ:
        assert outputs() == [[[3.0, 3.0], [3.0, 3.0]]] * 2
    for name, value in other_rounding(1).items():
        monkeypatch.setenv(name, value)
    found = outputs()
    assert found[0] == found[1] and {abs(element - 3) for row in found[0] for element in row} == {2.0**-22}
