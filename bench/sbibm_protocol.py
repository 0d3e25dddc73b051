"""What sbibm 1.1.0 stores about its tasks, and how it compares draws.

The wheel is downloaded and read as the archive that it is: it is not installed, none of its code
runs, and nothing is unpickled.
"""

import bz2
import hashlib
import io
import subprocess
import sys
import zipfile

import numpy as np
import torch
from sklearn.model_selection import KFold, cross_val_score
from sklearn.neural_network import MLPClassifier
from study import ROOT

FOLDER = ROOT / "runs" / "sbibm"
WHEEL = "sbibm-1.1.0-py2.py3-none-any.whl"
SHA = "12ecc6b4d327b92f9225f08faa6405e4274fb8e75943d86a53157d1b1bcfaf74"


def wheel():
    """The path of the wheel, which is downloaded if it is not there."""
    path = FOLDER / WHEEL
    if not path.exists():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "sbibm==1.1.0"]
        subprocess.run([*pip, "--dest", str(FOLDER)], check=True)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != SHA:
        raise ValueError(f"expected {path} with SHA-256 {SHA}, got {found}; delete the file.")
    return path


def stored(name, number, file):
    """The rows of a table of sbibm about one observation of a task."""
    with zipfile.ZipFile(wheel()) as archive:
        data = archive.read(f"sbibm/tasks/{name}/files/num_observation_{number}/{file}")
    data = bz2.decompress(data) if file.endswith(".bz2") else data
    rows = np.loadtxt(io.StringIO(data.decode()), delimiter=",", skiprows=1, ndmin=2)
    return torch.from_numpy(rows).float()


def c2st(reference, draws):
    """The accuracy of sbibm's classifier, which is scikit-learn's, on draws of both kinds."""
    if not bool(draws.isfinite().all()):
        raise ValueError(f"{int((~draws.isfinite()).any(1).sum()):,} draws are not finite.")
    center, spread, width = reference.mean(0), reference.std(0), 10 * reference.shape[1]
    both = torch.cat(((reference - center) / spread, (draws - center) / spread)).numpy()
    labels = np.repeat([0.0, 1.0], (len(reference), len(draws)))
    network = MLPClassifier((width, width), max_iter=10_000, random_state=1)
    folds = KFold(5, shuffle=True, random_state=1)
    return float(cross_val_score(network, both, labels, cv=folds).mean())
