"""The listed mistakes as variants of the oracle script, with the checks that expose them.

Sources are public threads in which people met the mistake; ``common`` is everyday carelessness.
A check is a cell for the agent's own interpreter: it prints a trace of the fault, no verdict.
"""

from __future__ import annotations

from bat_env.tasks import Mistake, load_sibling
from bat_env.tasks.mistakes import CLAIMS_HARD_CODED, Checks, frame_mistakes

FLOW = load_sibling(__file__, "oracle").FLOW
CHECKS = Checks(
    model="nodule_resnet3d",
    imports="import nibabel as nib",
    inputs='images = [nib.load(f"/data/{case}/ct.nii.gz") for case in cases]',
    run="""\
said, top = [], []
for case in cases[:12]:
    module["predict"](f"/data/{case}", f"/tmp/check/{case}")
    row = open(f"/tmp/check/{case}/predictions.csv").read().splitlines()[1].split(",")
    said.append(row[1])
    top.append(max(map(float, row[2:])))
print("check of pipeline/predict.py on", len(said), "cases")
print("labels", {name: said.count(name) for name in sorted(set(said))})
print("mean top probability", round(float(np.mean(top)), 2))
""",
)

MISTAKES = (
    # ------------------------------------------------------------------------------- S1, plan
    Mistake(
        "assumed_geometry",
        "Orientation and spacing are assumed instead of read from the headers.",
        "common",
        {"geometry": "assumed"},
        {"S1": 0.25},
        CHECKS.of_plan("""\
print("plan", list(facts["orientations"].items())[:3], facts["spacing_mm"])
for case, image in list(zip(cases, images))[:3]:
    zooms = [round(float(mm), 2) for mm in image.header.get_zooms()]
    print("file", case, "".join(nib.aff2axcodes(image.affine)), zooms)"""),
    ),
    Mistake(
        "stored_values_as_hu",
        "The plan takes stored integers for Hounsfield units: slope and intercept are ignored.",
        "pylidc PR#32",
        {"intensity_fact": "stored"},
        {"S1": 0.1},
        CHECKS.of_plan("""\
print("plan", facts["intensity_hu"])
hu = [image.get_fdata() for image in images[:4]]
print("first files, scaled", [(float(a.min()), float(a.max())) for a in hu])"""),
    ),
    CHECKS.preprocessing_by_habit(),
    CHECKS.pilot_check_in("percent", "a share is", "a probability lies between 0 and 1"),
    # ------------------------------------------------------------------------------ S2, set-up
    CHECKS.versions_from_memory(
        ("torch", "monai", "nibabel"),
        """\
print("first file", images[0].get_data_dtype(), images[0].shape)
print("slopes", [float(image.dataobj.slope) for image in images[:6]])
print("intercepts", [float(image.dataobj.inter) for image in images[:6]])""",
    ),
    CHECKS.loose_checkpoint({"task": 0.5, "S2": 0.35, "S3": 0.95, "S4": 0.95}),
    CHECKS.training_mode(
        "The network predicts in training mode: every patch is normalised by itself.",
        {"task": 0.3, "S2": 0.15},
    ),
    Mistake(
        "rescale_ignored",
        "Stored integers go into the window: files with an intercept are a thousand HU too dense.",
        "pylidc PR#32",
        {"intensity": "stored"},
        {"task": 0.35},
        CHECKS.of_pipeline("""\
for case in cases[:5]:
    image = nib.load(f"/data/{case}/ct.nii.gz")
    print(case, "slope", float(image.dataobj.slope), "intercept", float(image.dataobj.inter))
print([line.strip() for line in source.splitlines() if "hu = " in line])"""),
    ),
    Mistake(
        "front_taken_for_back",
        "Axes are brought to RAS instead of the card's order: front and back change places.",
        "TotalSegmentator#509",
        {"orient": "habit"},
        {"task": 0.15},
        CHECKS.against("orientation", 'card["preprocessing"]["orientation"]', "Orientation("),
    ),
    Mistake(
        "file_axes_kept",
        "Axes stay in the order of the file.",
        "nnUNet#2768",
        {"orient": "none"},
        {"task": 0.15},
        CHECKS.of_pipeline("""\
images = [nib.load(f"/data/{case}/ct.nii.gz") for case in cases[:6]]
print("files", ["".join(nib.aff2axcodes(image.affine)) for image in images])
print("card", card["preprocessing"]["orientation"])
print([line.strip() for line in source.splitlines() if "x = " in line][:2])"""),
    ),
    Mistake(
        "not_resampled",
        "Voxels of any size are taken for the card's: a ball turns into a rod, small into big.",
        "common",
        {"resample": "none"},
        {"task": 0.25},
        CHECKS.of_pipeline("""\
for case in cases[:4]:
    image = nib.load(f"/data/{case}/ct.nii.gz")
    print(case, [round(float(mm), 2) for mm in image.header.get_zooms()], image.shape)
print("card", card["preprocessing"]["spacing_mm"])
print([line.strip() for line in source.splitlines() if "x = " in line][2:3])"""),
    ),
    Mistake(
        "soft_tissue_window",
        "A window for soft tissue is used: lung and ground glass become black.",
        "MedSAM#101",
        {"window": "soft_tissue"},
        {"task": 0.3},
        CHECKS.against("window", 'card["preprocessing"]["window_hu"]', "x = ScaleIntensity"),
    ),
    Mistake(
        "window_of_extremes",
        "Each patch is stretched between its own extremes: equal densities look different.",
        "common",
        {"window": "extremes"},
        {"task": 0.1},
        CHECKS.against("window in HU", 'card["preprocessing"]["window_hu"]', "x = ScaleIntensity"),
    ),
    Mistake(
        "corner_taken",
        "A corner of the patch goes in, and the candidate lies at its edge.",
        "common",
        {"size": "corner"},
        {"task": 0.3},
        CHECKS.against("size", 'card["preprocessing"]["size_vox"]', "x = "),
    ),
    Mistake(
        "alphabetical_classes",
        "The network's outputs are named in alphabetical order instead of the card's.",
        "nnUNet#2500",
        {"classes": "alphabetical"},
        {"task": 0.5, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("channels", 'card["channels"]', "names = "),
    ),
    Mistake(
        "least_likely_class",
        "The class of the smallest probability is named.",
        "common",
        {"pick": "smallest"},
        {"task": 0.5, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("output", '"largest probability is the class"', "label = "),
    ),
    # ----------------------------------------------------------------------------- S3, validate
    CLAIMS_HARD_CODED,
    # ------------------------------------------------------------------------- the whole frame
    *frame_mistakes(
        FLOW,
        """\
import os, runpy
predict = runpy.run_path("pipeline/predict.py")["predict"]
table = dict(line.split(",")[:2] for line in open("outputs/predictions.csv").read().splitlines())
print("check of outputs/: labels of a new run of predict.py, and of the table")
for case in sorted(os.listdir("/data"))[:6]:
    predict(f"/data/{case}", "/tmp/check")
    row = open("/tmp/check/predictions.csv").read().splitlines()[1].split(",")
    print(case, row[1], table[case])
""",
    ),
)
