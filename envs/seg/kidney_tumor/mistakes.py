"""The listed mistakes as variants of the oracle script, with the checks that expose them.

Sources are public threads in which people met the mistake; ``common`` is everyday carelessness.
A check is a cell for the agent's own interpreter: it prints a trace of the fault, no verdict.
"""

from __future__ import annotations

from bat_env.tasks.scripts import Mistake

_LOOK = """\
import json, os, runpy, torch, nibabel as nib, numpy as np
source = open("pipeline/predict.py").read()
card = json.load(open("/models/kidney_unet/configs/metadata.json"))
case = sorted(os.listdir("/data"))[0]
image = nib.load(f"/data/{case}/ct.nii.gz")
module = runpy.run_path("pipeline/predict.py")
module["predict"](f"/data/{case}", "/tmp/check")
out = nib.load("/tmp/check/dseg.nii.gz")
y = np.asarray(out.dataobj)
print("check of pipeline/predict.py on", case)
print("shape", image.shape, "output", y.shape)
print("same affine", np.allclose(image.affine, out.affine))
ml = np.prod(image.header.get_zooms()) / 1000
print("kidney ml", round(float((y == 1).sum() * ml)), "tumor ml", round(float((y == 2).sum() * ml)))
"""


def _pipeline(question: str) -> str:
    """Run predict.py on one case, print what it gives, and look at one thing closer."""
    return _LOOK + question + "\n"


def _calls(what: str, wanted: str, name: str) -> str:
    return f'print("{what}", {wanted}, "- {name} called:", "{name}(" in source)'


_PLAN = """\
import json, os, nibabel as nib
facts = json.load(open("plan/facts.json"))
cases = sorted(os.listdir("/data"))
images = [nib.load(f"/data/{case}/ct.nii.gz") for case in cases]
print("check of plan/facts.json")
"""

MISTAKES = (
    # ------------------------------------------------------------------------------- S1, plan
    Mistake(
        "assumed_geometry",
        "Orientation and spacing are assumed instead of read from the headers.",
        "nnUNet#2897",
        {"facts": "assumed"},
        {"S1": 0.2},
        _PLAN
        + """\
for case, image in zip(cases, images):
    print(case, "plan", facts["orientations"].get(case), "file", nib.aff2axcodes(image.affine))
print("plan spacing", facts["spacing_mm"], "first file", image.header.get_zooms())
""",
    ),
    Mistake(
        "stored_values_as_hu",
        "The plan takes stored integers for Hounsfield units.",
        "pylidc PR#32",
        {"intensity_fact": "stored"},
        {"S1": 0.1},
        _PLAN
        + """\
hu = [image.get_fdata() for image in images]
print("plan intensity_hu", facts["intensity_hu"])
print("files", min(v.min() for v in hu), "to", max(v.max() for v in hu))
""",
    ),
    Mistake(
        "preprocessing_by_habit",
        "The plan declares the usual preprocessing, not the model card's.",
        "nnUNet#2768",
        {"declared": "habit"},
        {"S1": 0.1},
        _PLAN
        + """\
card = json.load(open("/models/kidney_unet/configs/metadata.json"))["preprocessing"]
print("plan", facts["preprocessing"])
print("card", card)
""",
    ),
    Mistake(
        "check_in_litres",
        "The range of the pilot check is in litres where millilitres are recorded.",
        "common",
        {"pilot_check": "litres"},
        {"S1": 0.1},
        _PLAN
        + """\
print("plan", facts["pilot_check"])
print("two adult kidneys hold 200 to 400 ml")
""",
    ),
    Mistake(
        "one_candidate",
        "No alternatives are compared and no picture of the plan is drawn.",
        "common",
        {"candidates": "one"},
        {"S1": 0.2},
        tier="standard",
    ),
    # ------------------------------------------------------------------------------ S2, set-up
    Mistake(
        "versions_from_memory",
        "Versions and input types are reported from memory.",
        "common",
        {"setup_claims": "memory"},
        {"S2": 0.2},
        """\
import json, os, platform, torch, monai, nibabel as nib
setup = json.load(open("setup/setup.json"))
print("check of setup/setup.json")
print("setup", setup["versions"], setup["inputs"])
print("here", platform.python_version(), torch.__version__, monai.__version__, nib.__version__)
for case in sorted(os.listdir("/data")):
    image = nib.load(f"/data/{case}/ct.nii.gz")
    print(case, image.get_data_dtype(), image.ndim, image.dataobj.slope, image.dataobj.inter)
""",
    ),
    Mistake(
        "loose_checkpoint",
        "The checkpoint is loaded without its key and not strictly: no weight arrives.",
        "MedSAM#200",
        {"checkpoint": "loose"},
        {"task": 0.4, "S2": 0.1, "S3": 0.1, "S4": 0.3},
        _pipeline("""\
state = torch.load("/models/kidney_unet/models/model.pt")["model"]
same = sum(torch.equal(v, state[k]) for k, v in module["net"].state_dict().items())
print("tensors equal to the checkpoint", same, "of", len(state))"""),
    ),
    Mistake(
        "training_mode",
        "The network predicts in training mode: dropout is on, results change from run to run.",
        "MedSAM#200",
        {"mode": "train"},
        {"task": 0.05, "S2": 0.1, "S4": 0.2},
        _pipeline("""\
module["predict"](f"/data/{case}", "/tmp/check")
again = np.asarray(nib.load("/tmp/check/dseg.nii.gz").dataobj)
print("voxels that differ in a second run", int((again != y).sum()))"""),
    ),
    Mistake(
        "slope_ignored",
        "Stored integers go into the network: slope and intercept are ignored.",
        "pylidc PR#32",
        {"intensity": "stored"},
        {"task": 0.2},
        _pipeline("""\
for case in sorted(os.listdir("/data")):
    image = nib.load(f"/data/{case}/ct.nii.gz")
    print(case, "slope", image.dataobj.slope, "inter", image.dataobj.inter)
print("stored values read:", "get_unscaled" in source)"""),
    ),
    Mistake(
        "no_reorientation",
        "Arrays go into the network in the file's axis order and direction.",
        "nnUNet#2768",
        {"orient": "none"},
        {"task": 0.2},
        _pipeline(
            'print("axes", nib.aff2axcodes(image.affine))\n'
            + _calls("model axes", 'card["preprocessing"]["orientation"]', "Orientation")
        ),
    ),
    Mistake(
        "no_resampling",
        "Arrays go into the network with the file's spacing.",
        "nnUNet#2402",
        {"resample": "none"},
        {"task": 0.1},
        _pipeline(
            'print("spacing", image.header.get_zooms())\n'
            + _calls("model spacing", 'card["preprocessing"]["spacing_mm"]', "Spacing")
        ),
    ),
    Mistake(
        "lung_window",
        "Intensities are scaled with a lung window.",
        "MedSAM#101",
        {"window": "lung"},
        {"task": 0.2},
        _pipeline("""\
print("model window", card["preprocessing"]["window_hu"])
print([line.strip() for line in source.splitlines() if "IntensityRange(" in line])"""),
    ),
    Mistake(
        "min_max_scaling",
        "Intensities are scaled by the image's own minimum and maximum, without a window.",
        "nnUNet#1680",
        {"window": "minmax"},
        {"task": 0.2},
        _pipeline("""\
print("model window", card["preprocessing"]["window_hu"])
print([line.strip() for line in source.splitlines() if "IntensityRange(" in line])"""),
    ),
    Mistake(
        "labels_swapped",
        "Channels are written as labels: kidney and tumour change places.",
        "nnUNet#2500",
        {"channels": "raw"},
        {"task": 0.4},
        _pipeline("""\
print("channels", card["channels"])
print("labels", json.load(open("task/spec.json"))["output"]["labels"])"""),
    ),
    Mistake(
        "left_in_model_grid",
        "The label map is saved in the network's grid, not the input's.",
        "TotalSegmentator#20",
        {"restore": "model_grid"},
        {"task": 0.4, "S3": 0.1, "S4": 0.4},
        _pipeline('print("resampled back:", "resample_from_to(" in source)'),
    ),
    Mistake(
        "mirrored",
        "The label map is flipped left to right on its way back.",
        "TotalSegmentator#509",
        {"restore": "flipped"},
        {"task": 0.2},
        _pipeline("""\
print("flips on the way back:", "[::-1]" in source)"""),
    ),
    Mistake(
        "identity_affine",
        "The label map is saved with an identity affine.",
        "SimpleITK-Notebooks#244",
        {"restore": "identity"},
        {"task": 0.4, "S3": 0.1, "S4": 0.4},
        _pipeline('print("output affine", np.diag(out.affine), "identity:", "np.eye" in source)'),
    ),
    # ----------------------------------------------------------------------------- S3, validate
    Mistake(
        "no_repair",
        "A pipeline that nobody verified is trusted as it is.",
        "common",
        {"repair": "skip"},
        {"S3": 0.1},
        outcome="recovery",
    ),
    Mistake(
        "two_pilots",
        "The pilot covers two cases.",
        "common",
        {"pilot_cases": "two"},
        {"S3": 0.1},
    ),
    Mistake(
        "pilot_after_batch",
        "The pilot is run after the batch that it was to protect.",
        "common",
        {"pilot_order": "after"},
        {"S3": 0.1},
    ),
    Mistake(
        "claims_hard_coded",
        "What the pilot's file should hold is written down without looking.",
        "common",
        {"pilot_record": "assumed"},
        {"S3": 0.2},
    ),
    # ----------------------------------------------------------------------- S4, S5: infer, submit
    Mistake(
        "first_case_only",
        "Only the first case is predicted.",
        "nnUNet#729",
        {"batch": "first"},
        {"task": 0.3, "S4": 0.4},
        """\
import os
print("check of outputs/")
for case in sorted(os.listdir("/data")):
    print(case, "output exists:", os.path.exists(f"outputs/{case}/dseg.nii.gz"))
""",
    ),
    Mistake(
        "edited_by_hand",
        "Outputs are shifted by hand after prediction: a re-run gives others.",
        "common",
        {"batch": "edited"},
        {"task": 0.05, "S4": 0.3},
        """\
import os, runpy, nibabel as nib, numpy as np
predict = runpy.run_path("pipeline/predict.py")["predict"]
print("check of outputs/: voxels that differ from a new run of predict.py")
for case in sorted(os.listdir("/data"))[:2]:
    predict(f"/data/{case}", "/tmp/check")
    a = np.asarray(nib.load("/tmp/check/dseg.nii.gz").dataobj)
    b = np.asarray(nib.load(f"outputs/{case}/dseg.nii.gz").dataobj)
    print(case, int((a != b).sum()), "of", int((a > 0).sum()))
""",
    ),
    Mistake(
        "names_hashed",
        "The manifest holds digests of file names instead of file contents.",
        "common",
        {"manifest": "names"},
        {"S5": 0.3},
    ),
    Mistake(
        "manifest_incomplete",
        "The manifest lists the first output only.",
        "common",
        {"manifest": "first"},
        {"S5": 0.3},
    ),
)
