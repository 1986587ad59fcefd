"""One thread of torch and of NumPy's linear algebra, while something of ours is computed."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from fl_shuffle._internal.threads import one_thread, with_one_blas_thread


def blas_threads() -> set[int]:
    np.ones((2, 2)) @ np.ones((2, 2))
    return {found["num_threads"] for found in threadpool_info() if found["user_api"] == "blas"}


def test_the_callers_own_numbers_come_back() -> None:
    before = torch.get_num_threads()
    with threadpool_limits(2, user_api="blas"):
        torch.set_num_threads(2)
        try:
            own = blas_threads()
            with pytest.raises(ZeroDivisionError), one_thread():
                assert blas_threads() == {1}
                assert torch.get_num_threads() == 1
                raise ZeroDivisionError
            assert blas_threads() == own
            assert torch.get_num_threads() == 2
            assert with_one_blas_thread(blas_threads)() == {1}
            assert blas_threads() == own
        finally:
            torch.set_num_threads(before)


def test_the_command_says_so_before_numpy_is_loaded() -> None:
    code = (
        "import os, sys\n"
        "from fl_shuffle.cli import main\n"
        "assert 'numpy' not in sys.modules\n"
        "main(['bound', '--epsilon0', '1', '--clients', '1000', '--delta', '1e-6'])\n"
        "print(os.environ['OPENBLAS_NUM_THREADS'], 'numpy' in sys.modules)\n"
    )
    clean = {name: value for name, value in os.environ.items() if "NUM_THREADS" not in name}
    for given, said in ({}, "1 True"), ({"OPENBLAS_NUM_THREADS": "2"}, "2 True"):
        found = subprocess.check_output([sys.executable, "-c", code], env=clean | given, text=True)
        assert found.splitlines()[-1] == said
