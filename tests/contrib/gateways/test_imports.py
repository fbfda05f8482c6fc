"""Gateways are plugins that every program finds, so finding them imports nothing heavy."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("name", ["emp", "majordomo", "mc0"])
def test_a_gateway_that_is_not_used_imports_no_library(name: str) -> None:
    """Its modules would also make each collection of garbage in the program longer."""
    code = (
        f"import sys, eventmq_contrib.gateways.{name}\n"
        "print(sorted({'asyncio', 'click', 'ssl', 'zmq'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_name_that_the_emp_plugin_does_not_have_is_an_attribute_error() -> None:
    import eventmq_contrib.gateways.emp as plugin

    with pytest.raises(AttributeError, match="has no attribute 'EmpServer'"):
        _ = plugin.EmpServer
