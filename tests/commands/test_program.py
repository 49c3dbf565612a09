"""What a command is about: functions by name, their arguments, and what is said where there is no such thing."""

import argparse
import sys

import jax
import pytest

from exla.commands.flags import add_program_arguments, option_texts
from exla.commands.program import is_script, read_subject, surroundings
from exla.commands.shapes import UsageError
from exla.options import Options


def subject(*words):
    parser = argparse.ArgumentParser()
    add_program_arguments(parser)
    arguments = parser.parse_args(list(words))
    with surroundings(arguments):
        return read_subject(arguments)


@pytest.mark.parametrize("program", ["kernels:smooth", "kernels.py:smooth", "./kernels.py:smooth", "kernels:capped"])
def test_a_function_is_found_and_unwrapped(program):
    found = subject(program, "--shapes", "f32[4,3] f32[5,3] f32[5]")
    assert type(found.function).__name__ == "function" and found.function.__name__ == "smooth"
    assert [a.shape for a in found.arguments.positional] == [(4, 3), (5, 3), (5,)]


def test_wrappers_are_taken_off_one_by_one():
    assert type(subject("kernels:twice", "--shapes", "f32[3]").function).__name__ == "function"
    assert type(subject("kernels:jitted", "--shapes", "1 2 3").function).__name__ == "function"


def test_dots_reach_attributes_and_modules_of_packages():
    assert subject("kernels:Model.apply", "--shapes", "f32[3]").function.__name__ == "apply"
    assert subject("jax.nn:relu", "--shapes", "f32[3]").function.__name__ == "relu"


def test_what_exla_jit_was_given_stays_and_flags_win():
    words = ("--shapes", "f32[4,3] f32[5,3] f32[5]")
    assert subject("kernels:capped", *words).options["memory_limit"] == 96 * 1024
    assert subject("kernels:capped", *words).options["static_argnames"] == "scale"
    assert subject("kernels:capped", *words, "--memory-limit", "1MiB").options["memory_limit"] == "1MiB"
    assert subject("kernels:smooth", *words).options == {}


def test_every_option_is_a_flag_with_its_own_words():
    given = {"memory_limit": "1MiB", "rules": "softmax_by_hand"}
    for name in vars(Options()):
        flag = "--" + name.replace("_", "-")
        value = given.get(name, "text")
        assert subject("kernels:twice", "--shapes", "f32[3]", flag, value).options[name] == value
        assert len(option_texts()[name]) > 20


def test_static_and_donated_arguments_are_named_either_way():
    for flag in ("how", "1"):
        options = subject("kernels:choose", "--shapes", "f32[3] 'sum'", "--static", flag).options
        assert options == {"static_argnums": (1,), "static_argnames": ("how",)}
    options = subject("kernels:choose", "--shapes", "f32[3] 'sum'", "--static", "how,causal", "--donate", "x").options
    assert options["static_argnums"] == (1,) and options["static_argnames"] == ("causal", "how")
    assert options["donate_argnums"] == (0,) and options["donate_argnames"] == ("x",)


SHAPES = ("--shapes", "f32[3] 'sum'", "--static", "1")
NOT_UNDERSTOOD = {
    "kernels": "neither a function nor a script",
    ":smooth": "neither a function nor a script",
    "kernels:": "neither a function nor a script",
    "nonsense:f": "no module 'nonsense'",
    "kernels.deeper:f": "no module 'kernels.deeper'",
    "nowhere.py:f": "no file 'nowhere.py'",
    "kernels:smoth": "did you mean smooth?",
    "kernels:zzzz": "there are: smooth, capped",
    "kernels:number": "of type int",
    "kernels:Model.zzzz": "no 'zzzz'",
    "kernels:smooth": "without --shapes: missing a required argument: 'x'; the function is smooth(x, y, v, scale=2.0)",
    "kernels:smooth --shapes f32[3]": "--shapes: missing a required argument: 'y'",
    "kernels:twice --shapes f32[3],f32[3]": "too many positional arguments",
    "kernels:twice --shapes 1,z=1": "unexpected keyword argument 'z'",
    "kernels:twice --shapes f32[": "at position 5",
    "kernels:twice --shapes f64[2]": "--x64",
    "kernels:choose --shapes f32[3],'sum'": "argument how holds text, which is no array: name it in --static",
    "kernels:choose --shapes f32[3],how='sum'": "argument how holds text",
    "kernels:choose --shapes f32[3],'sum' --static 1,x": "argument x is static",
    "kernels:choose --shapes f32[3],'sum' --static hwo": "no parameter hwo; its parameters are 0 x, 1 how, 2 causal",
    "kernels:choose --shapes f32[3],'sum' --static 7": "no parameter 7",
    "kernels:choose --shapes f32[3],'sum' --static how --donate 2": "no parameter 2",
}


@pytest.mark.parametrize("words", NOT_UNDERSTOOD)
def test_what_is_not_understood_is_told(words):
    with pytest.raises(UsageError) as error:
        subject(*words.split())
    assert NOT_UNDERSTOOD[words] in str(error.value)


def test_an_import_that_fails_is_the_users_own_error(folder):
    (folder / "broken.py").write_text("import no_such_module\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        subject("broken:f")


def test_modules_beside_a_file_are_found_and_the_path_is_put_back(folder, monkeypatch):
    inner = folder / "inner"
    inner.mkdir()
    (inner / "beside_it.py").write_text("def f(x):\n    return x\n")
    (inner / "main.py").write_text("from beside_it import f\n")
    before = list(sys.path)
    assert subject("inner/main.py:f", "--shapes", "f32[3]").function.__name__ == "f"
    assert sys.path == before


def test_64_bits_are_there_for_as_long_as_they_are_asked_for():
    assert subject("kernels:twice", "--x64", "--shapes", "f64[2]").arguments.positional[0].dtype == "float64"
    assert not jax.config.jax_enable_x64


def test_a_script_has_no_colon(folder):
    assert is_script("kernels.py") and is_script("nowhere.py") and not is_script("kernels.py:smooth")
    (folder / "train").write_text("")
    assert is_script("train") and not is_script("kernels")
