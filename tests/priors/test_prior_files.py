"""Priors in TOML: what each file means, and what is said about a file that means nothing."""

import pytest
import torch
from torch.distributions import Independent, MultivariateNormal, Normal, Uniform

from prudent.errors import InputError
from prudent.priors.checks import JOINT, PARAMETERS, dtype_of, from_spec
from prudent.priors.families import Product, Truncated
from prudent.priors.given import as_prior


def written(tmp_path, text):
    path = tmp_path / "prior.toml"
    path.write_text(text)
    return as_prior(path)


COVARIANCE = torch.tensor([[1.0, 1.0], [1.0, 4.0]])
SAME = {
    'kind = "box"\nlow = [0, 1]\nhigh = [1, 3]': Independent(
        Uniform(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 3.0])), 1
    ),
    'family = "Normal"\nloc = [0, 1]\nscale = [1, 2]': Independent(
        Normal(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0])), 1
    ),
    'family = "MultivariateNormal"\nloc = [0, 1]\ncovariance_matrix = [[1, 1], [1, 4]]': (
        MultivariateNormal(torch.tensor([0.0, 1.0]), COVARIANCE)
    ),
    'family = "MultivariateNormal"\nloc = [0, 1]\nstd = [1, 2]\n'
    "correlation = [[1, 0.5], [0.5, 1]]": (
        MultivariateNormal(torch.tensor([0.0, 1.0]), COVARIANCE)
    ),
    '[[parameter]]\nfamily = "Normal"\nloc = 0\nscale = 1\nlow = 0\nhigh = inf\n': Product(
        [Truncated(Normal(torch.tensor(0.0), torch.tensor(1.0)), 0.0)]
    ),
}


@pytest.mark.parametrize("text", SAME)
def test_a_file_means_what_torch_would(text, tmp_path):
    found = written(tmp_path, text)
    theta = SAME[text].sample((100,))
    assert torch.allclose(found.prior.log_prob(theta), SAME[text].log_prob(theta), atol=1e-5)
    assert found.names == [f"theta_{i + 1}" for i in range(theta.shape[1])]


def test_names_and_units_stand_in_the_same_file(tmp_path):
    text = '[[parameter]]\nname = "tau"\nunit = "s"\nfamily = "LogUniform"\nlow = 1e-3\nhigh = 1\n'
    _, names, units = written(tmp_path, text + '[[parameter]]\nfamily = "HalfNormal"\nscale = 1\n')
    assert (names, units) == (["tau", "theta_2"], ["s", ""])
    text = 'kind = "box"\nlow = [0]\nhigh = [1]\nnames = ["a"]\nunits = ["m"]\n'
    assert written(tmp_path, text)[1:] == (["a"], ["m"])


def test_digits_that_float32_would_lose_can_be_kept(tmp_path):
    text = 'kind = "box"\nlow = [99999999]\nhigh = [100000001]\n'
    with pytest.raises(InputError, match=r"low 99999999 is not below .* in float32"):
        written(tmp_path, text)
    found = written(tmp_path, text + 'dtype = "float64"\n')
    assert dtype_of(found.prior) == torch.float64


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_family_can_be_written(name, tmp_path):
    numbers = {"low": 0.5, "high": 2.0}
    lines = [f"{key} = {numbers.get(key, 1.5)}" for key in PARAMETERS[name]]
    found = written(tmp_path, "\n".join(["[[parameter]]", f'family = "{name}"', *lines]))
    spec = {key: [numbers.get(key, 1.5)] for key in PARAMETERS[name]}
    same = Independent(from_spec({"class": name, "parameters": spec}), 1)
    theta = same.sample((20,))
    assert torch.equal(found.prior.log_prob(theta), same.log_prob(theta))


def test_joint_families_can_be_written(tmp_path):
    assert (
        written(tmp_path, 'family = "Dirichlet"\nconcentration = [1, 2, 3]').names[2] == "theta_3"
    )
    assert set(JOINT) == {"Dirichlet", "MultivariateNormal"}


NORMAL = 'family = "MultivariateNormal"\nloc = [0, 0]\n'
HEAD = '[[parameter]]\nfamily = "Normal"\nloc = 0\nscale = 1\n'


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("", [": not a prior; expected `kind"]),
        ('kind = "bx"', [":1:1: kind: unknown kind `bx`"]),
        (
            'family = "Normall"\nloc = [0]',
            [":1:1: family: unknown family `Normall`. Did you mean"],
        ),
        (
            'kind = "box"\nlow = [0]\nhihg = [1]',
            [":3:1: hihg: unknown key `hihg`. Did you mean `high`", "`high` is missing"],
        ),
        ('kind = "box"\nlow = [0]', ["`high` is missing"]),
        ('kind = "box"\nlow = [0, 1]\nhigh = [1]', ["2 in `low`, 1 in `high`"]),
        ('kind = "box"\nlow = [1]\nhigh = [0]', [":2:1: low: low 1 is not below high 0"]),
        ('kind = "box"\nlow = "a"\nhigh = [0]', [":2:1: low: `low` is 'a'; expected a list"]),
        (
            'kind = "box"\nlow = [0]\nhigh = [1]\nnames = ["a", "b"]',
            [":4:1: names: the prior has 1"],
        ),
        ('kind = "box"\nlow = [0]\nhigh = [1]\nunits = []', ["units: the prior has 1 par"]),
        (
            'kind = "box"\nlow = [0, 0]\nhigh = [1, 1]\nnames = ["a", "a"]',
            [":4:1: names: expected names that differ"],
        ),
        (
            HEAD + '[[parameter]]\nfamily = "Nrmal"\n',
            [":6:1: parameter[1].family: unknown family"],
        ),
        (
            HEAD + '[[parameter]]\nfamily = "Normal"\nloc = 0\nscael = 1\n',
            [":8:1: parameter[1].scael: unknown key `scael`. Did you mean `scale`", "is missing"],
        ),
        (
            HEAD + '[[parameter]]\nfamily = "Normal"\nloc = 0\nscale = 0\n',
            [":8:1: parameter[1].scale: `scale` is 0; expected a number > 0"],
        ),
        (HEAD + "low = true", [":5:1: parameter[0].low: `low` is True; expected a number"]),
        (HEAD + "low = nan", ["parameter[0].low: `low` is nan; expected a number"]),
        (HEAD + "low = 2\nhigh = 1", [":5:1: parameter[0].low: no Normal lies between 2 and 1"]),
        (HEAD + "high = -9", ["parameter[0].high: less than 1e-06"]),
        (
            '[[parameter]]\nfamily = "Beta"\nconcentration0 = 1\nconcentration1 = 1\nlow = 0.1',
            [":5:1: parameter[0].low: a Beta cannot be cut"],
        ),
        (
            '[[parameter]]\nfamily = "LogUniform"\nlow = 0\nhigh = 1',
            ["needs bounds with 0 < low < high"],
        ),
        ('[[parameter]]\nfamily = "Dirichlet"\n', ["Dirichlet is a family of several parameters"]),
        ("[[parameter]]\nloc = 1\n", ["parameter[0]: `family` is missing"]),
        ("parameter = 5", [":1:1: parameter: not a prior"]),
        ("parameter = []", ["not a prior"]),
        (HEAD.replace("1\n", "1e-60\n"), ["`scale` is 1e-60, which float32 does not hold"]),
        (
            'family = "MultivariateNormal"\nloc = [0]',
            ["a normal needs one of `covariance_matrix`"],
        ),
        (
            'family = "MultivariateNormal"\nloc = [0, 0]\ncovariance_matrix = [[1, 2], [2, 1]]',
            [":3:1: covariance_matrix: no parameters vary like this"],
        ),
        (NORMAL + "std = [1, -2]\ncorrelation = [[1, 0], [0, 1]]", [":3:1: std: expected numb"]),
        (NORMAL + "std = [1, 2]\ncorrelation = [[2, 0], [0, 1]]", ["correlation: expected 1 on"]),
        (
            NORMAL + "std = [1, 2]\ncorrelation = [[1, 0], [0.5, 1]]",
            [":4:1: correlation: expecte"],
        ),
        (
            NORMAL + "covariance_matrix = [[1]]",
            [":3:1: covariance_matrix: got shape (1, 1) for 2"],
        ),
        (NORMAL + "scale_tril = [[1, 0], [0, 1]]\nlow = [0, 0]", [":4:1: low: a Multivariate"]),
        (
            'family = "MultivariateNormal"\nloc = [0]\ncovariance = [[1]]',
            [":3:1: covariance: unknown key `covariance`. Did you mean `covariance_matrix`"],
        ),
        ('family = "Dirichlet"\nconcentration = ["a"]', [":2:1: concentration: expected lists"]),
        ('class = "os.system"', ["os.system"]),
        (f'dtype = "float16"\n{HEAD}', [":1:1: dtype: `dtype` is 'float16'"]),
        ("low = [0", ["is not valid TOML"]),
    ],
)
def test_mistakes_are_told_with_their_place(text, messages, tmp_path):
    with pytest.raises(InputError) as error:
        written(tmp_path, text)
    told = str(error.value)
    assert "prior.toml" in told
    for message in messages:
        assert message in told
    assert len(told.splitlines()) <= 1 + len(messages)
