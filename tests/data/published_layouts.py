"""Writers of small generated copies of each published layout: same folders, names and headers."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from PIL import Image

CASES = 8
RNG = np.random.default_rng


def write(name: str, folder: Path) -> None:
    """Write a layout."""
    folder.mkdir(parents=True)
    WRITERS[name](folder)


def nifti(path: Path, values: np.ndarray, affine: np.ndarray | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(
        nib.Nifti1Image(values, np.diag([2.0, 2.0, 3.0, 1.0]) if affine is None else affine), path
    )


def ct(n: int, shape: tuple[int, int, int] = (32, 28, 20)) -> tuple[np.ndarray, np.ndarray]:
    """A body with an organ (1) and a lesion (2), int16 HU."""
    rng = RNG(n)
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, s) for s in shape], indexing="ij"))
    labels = np.zeros(shape, np.uint8)
    labels[((grid - rng.uniform(-0.2, 0.2, (3, 1, 1, 1))) ** 2).sum(0) < 0.25] = 1
    if n % 3:
        labels[((grid - rng.uniform(-0.3, 0.3, (3, 1, 1, 1))) ** 2).sum(0) < 0.06] = 2
    hu = np.where((grid**2).sum(0) < 0.9, 0.0, -1000.0) + 60.0 * labels + rng.normal(0, 8, shape)
    return hu.astype(np.int16), labels


# KiTS19's axes run slice, row, column.
KITS_AFFINE = np.array([[0, 0, -2.0, 0], [0, -2.0, 0, 0], [-3.0, 0, 0, 0], [0, 0, 0, 1.0]])


def kits19(folder: Path) -> None:
    for n in range(CASES):
        hu, labels = ct(n)
        case = folder / "data" / f"case_{n:05d}"
        nifti(case / "imaging.nii.gz", hu.astype(np.float64).T.astype(np.int16), KITS_AFFINE)
        nifti(case / "segmentation.nii.gz", labels.T.copy(), KITS_AFFINE)
    nifti(folder / "data" / "case_00210" / "imaging.nii.gz", ct(99)[0].T.copy(), KITS_AFFINE)
    (folder / "data" / "kits.json").write_text("[]")
    (folder / "LICENSE").write_text("MIT")


def msd(folder: Path, task: str = "Task09_Spleen", channels: Sequence[str] = ("CT",)) -> None:
    root = folder / task
    training = []
    for n in range(CASES):
        hu, labels = ct(n)
        image = np.stack([hu + c for c in range(len(channels))], -1) if len(channels) > 1 else hu
        nifti(root / "imagesTr" / f"spleen_{n}.nii.gz", image)
        nifti(root / "labelsTr" / f"spleen_{n}.nii.gz", labels)
        (root / "imagesTr" / f"._spleen_{n}.nii.gz").write_bytes(b"\0Mac")
        (root / "labelsTr" / f"._spleen_{n}.nii.gz").write_bytes(b"\0Mac")
        training.append(
            {"image": f"./imagesTr/spleen_{n}.nii.gz", "label": f"./labelsTr/spleen_{n}.nii.gz"}
        )
    table = {
        "name": "Spleen",
        "description": "Spleen Segmentation",
        "reference": "Memorial Sloan Kettering Cancer Center",
        "licence": "CC-BY-SA 4.0",
        "release": "1.0 06/08/2018",
        "tensorImageSize": "3D" if len(channels) == 1 else "4D",
        "modality": {str(n): name for n, name in enumerate(channels)},
        "labels": {"0": "background", "1": "spleen", "2": "cyst"},
        "numTraining": CASES,
        "numTest": 1,
        "training": training,
        "test": ["./imagesTs/spleen_40.nii.gz"],
    }
    (root / "dataset.json").write_text(json.dumps(table))


def totalsegmentator(folder: Path) -> None:
    lines = ["﻿image_id;age;gender;institute;study_type;split;manufacturer"]
    for n in range(CASES):
        hu, labels = ct(n)
        subject = folder / f"s{n:04d}"
        nifti(subject / "ct.nii.gz", hu)
        for name, value in (("liver", 1), ("spleen", 2), ("aorta", 3), ("rib_left_1", 4)):
            nifti(subject / "segmentations" / f"{name}.nii.gz", (labels == value).astype(np.uint8))
        lines.append(f"s{n:04d};60;m;A;ct thorax;train;siemens")
    (folder / "meta.csv").write_text("\n".join(lines))


def aeropath(folder: Path) -> None:
    (folder / "README.md").write_text("# AeroPath")
    for n in range(1, CASES + 1):
        hu, labels = ct(n)
        case = folder / "AeroPath" / str(n)
        nifti(case / f"{n}_CT_HR.nii.gz", hu)
        nifti(case / f"{n}_CT_HR_label_lungs.nii.gz", (labels > 0).astype(np.uint8))
        nifti(case / f"{n}_CT_HR_label_airways.nii.gz", (labels > 1).astype(np.uint8))


def noisy_pair(n: int, shape: tuple[int, int, int] = (48, 48, 10)) -> tuple[np.ndarray, np.ndarray]:
    hu, _ = ct(n, shape)
    smooth = hu.astype(np.float32)
    return (smooth + RNG(n + 100).normal(0, 60, shape)).astype(np.int16), smooth.astype(np.int16)


def ldct(folder: Path) -> None:
    for n in range(CASES):
        low, full = noisy_pair(n)
        patient = folder / "LDCT-and-Projection-data" / f"L{n + 4:03d}" / "12-23-2021-NA-NA-62464"
        series(patient / f"1.000000-Low Dose Images-{n:05d}", low)
        series(patient / f"1.000000-Full Dose Images-{n + 50:05d}", full)
    lone = folder / "LDCT-and-Projection-data" / "N900" / "12-23-2021-NA-NA-1"
    series(lone / "1.000000-Full Dose Images-1", noisy_pair(50)[1])


def series(
    folder: Path,
    hu: np.ndarray,
    uid: str = "",
    slope: float = 1.0,
    inter: float = -1024.0,
    gap_mm: float = 3.0,
    skip: Sequence[int] = (),
    names: Callable[[int], str] = lambda n: f"1-{n + 1:03d}.dcm",
) -> None:
    """A DICOM CT series of ``hu`` (x, y, z), its files named against their order in space."""
    import pydicom
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    folder.mkdir(parents=True, exist_ok=True)
    uid = uid or generate_uid()
    count = hu.shape[2]
    for z in range(count):
        if z in skip:
            continue
        one = Dataset()
        one.file_meta = FileMetaDataset()
        one.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        one.file_meta.MediaStorageSOPClassUID = one.SOPClassUID = CTImageStorage
        one.file_meta.MediaStorageSOPInstanceUID = one.SOPInstanceUID = generate_uid()
        one.Modality, one.PatientName, one.SeriesInstanceUID = "CT", "Real^Name", uid
        one.StudyInstanceUID = generate_uid()
        one.Rows, one.Columns = hu.shape[1], hu.shape[0]
        one.PixelSpacing, one.SliceThickness = [0.7, 0.7], gap_mm
        one.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
        one.ImagePositionPatient = [-20.0, -30.0, 10.0 + gap_mm * z]
        one.InstanceNumber = count - z
        one.SamplesPerPixel, one.PhotometricInterpretation = 1, "MONOCHROME2"
        one.BitsAllocated, one.BitsStored, one.HighBit, one.PixelRepresentation = 16, 16, 15, 1
        one.RescaleSlope, one.RescaleIntercept = slope, inter
        stored = np.rint((hu[..., z].T.astype(float) - inter) / slope).astype("<i2")
        one.PixelData = stored.tobytes()
        pydicom.dcmwrite(folder / names(count - 1 - z), one, enforce_file_format=True)


def paired(folder: Path) -> None:
    for n in range(CASES):
        low, full = noisy_pair(n)
        nifti(folder / "input" / f"p{n}.nii.gz", low)
        nifti(folder / "target" / f"p{n}.nii.gz", full)


def mha(path: Path, values: np.ndarray) -> None:
    import SimpleITK

    path.parent.mkdir(parents=True, exist_ok=True)
    image = SimpleITK.GetImageFromArray(values.transpose(2, 1, 0))
    image.SetSpacing((1.0, 1.0, 3.0))
    image.SetOrigin((-174.0, -130.2, 297.3))
    SimpleITK.WriteImage(image, str(path), True)


def synthrad2025(folder: Path) -> None:
    for n in range(CASES):
        hu, labels = ct(n)
        case = folder / "synthRAD2025_Task1_Train" / "Task1" / "HN" / f"1HNA{n + 1:03d}"
        mha(case / "mr.mha", (400 - 0.3 * hu + 50 * labels).astype(np.int16))
        mha(case / "ct.mha", hu)
        mha(case / "mask.mha", (hu > -500).astype(np.uint8))
    mha(folder / "synthRAD2025_Task1_Train" / "Task1" / "HN" / "1HNC900" / "mr.mha", ct(0)[0])


def photo(n: int, tone: int, size: tuple[int, int] = (60, 45)) -> Image.Image:
    rng = RNG(n)
    pixels = rng.integers(0, 60, (size[1], size[0], 3)) + np.array([tone, 90, 200 - tone])
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def ham10000(folder: Path) -> None:
    codes = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
    rows = []
    for part in (1, 2):
        (folder / f"HAM10000_images_part_{part}").mkdir()
    for n in range(70):
        code = codes[n % 7]
        image = f"ISIC_{24306 + n:07d}"
        photo(n, 30 * (n % 7)).save(folder / f"HAM10000_images_part_{1 + n % 2}" / f"{image}.jpg")
        rows.append(
            [f"HAM_{n // 14 * 7 + n % 7:07d}", image, code, "histo", "60.0", "male", "back"]
        )
    rows.append(["HAM_9999999", "ISIC_9999999", "nv", "histo", "1.0", "male", "back"])
    header = ["lesion_id", "image_id", "dx", "dx_type", "age", "sex", "localization"]
    table(folder / "HAM10000_metadata.csv", header, rows)


def isic2018(folder: Path) -> None:
    names = ["MEL", "NV", "BCC", "AKIEC", "BKL", "DF", "VASC"]
    images = folder / "ISIC2018_Task3_Training_Input"
    images.mkdir()
    rows = []
    for n in range(28):
        photo(n, 30 * (n % 7)).save(images / f"ISIC_{n:07d}.jpg")
        rows.append([f"ISIC_{n:07d}", *[f"{float(k == n % 7)}" for k in range(7)]])
    truth = folder / "ISIC2018_Task3_Training_GroundTruth"
    truth.mkdir()
    table(truth / "ISIC2018_Task3_Training_GroundTruth.csv", ["image", *names], rows)


def table(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    opened: Any = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(header)
        writer.writerows(rows)


def radiograph(n: int, size: tuple[int, int] = (64, 80)) -> np.ndarray:
    return RNG(n).integers(0, 4096, (size[1], size[0]), dtype=np.uint16) * 16


def grazpedwri(folder: Path) -> None:
    names = ["boneanomaly", "bonelesion", "foreignbody", "fracture", "metal"]
    names += ["periostealreaction", "pronatorsign", "softtissue", "text"]
    yolo = folder / "folder_structure" / "yolov5"
    (yolo / "labels").mkdir(parents=True)
    (yolo / "meta.yaml").write_text(f"train: x\nval: x\nnc: 9\nnames: {names}\n")
    rows = []
    for n in range(30):
        part = folder / f"images_part{1 + n % 4}"
        part.mkdir(exist_ok=True)
        stem = f"{n // 2:04d}_0{n % 2}_WRI-R1_M0{n % 9}"
        Image.fromarray(radiograph(n)).save(part / f"{stem}.png")
        if n % 5:
            (yolo / "labels" / f"{stem}.txt").write_text("3 0.5 0.5 0.25 0.2\n8 0.9 0.1 0.1 0.1\n")
        rows.append([stem, n // 2, 1, 1, "M", 9, "R", 1, 1, "", "", "", "", 1, "", 0.144, "S"])
    header = "filestem patient_id study_number timehash gender age laterality projection "
    header += "initial_exam ao_classification cast diagnosis_uncertain osteopenia "
    header += "fracture_visible metal pixel_spacing device_manufacturer"
    table(folder / "dataset.csv", header.split(), rows)


def vindr_cxr(folder: Path) -> None:
    test, train, readers = [], [], []
    for n in range(12):
        image = f"{n:032x}"
        xray(folder / "test" / f"{image}.dicom", radiograph(n) // 16, n % 2 == 0)
        box = [10.5, 12.0, 40.0, 50.25]
        test.append(
            [image, "Pleural effusion", *box] if n % 3 else [image, "No finding", *[""] * 4]
        )
    for n in range(6):
        image = f"{n + 100:032x}"
        xray(folder / "train" / f"{image}.dicom", radiograph(n + 100) // 16, False)
        train += [
            [image, "R8", "Nodule/Mass", 10, 10, 30, 30],
            [image, "R9", "Nodule/Mass", 12, 10, 32, 30],
            [image, "R10", "Cardiomegaly", 5, 40, 60, 70],
        ]
        readers.append([image, "R8"])
    notes = folder / "annotations"
    notes.mkdir()
    corners = ["x_min", "y_min", "x_max", "y_max"]
    table(notes / "annotations_test.csv", ["image_id", "class_name", *corners], test)
    table(notes / "annotations_train.csv", ["image_id", "rad_id", "class_name", *corners], train)
    table(notes / "image_labels_test.csv", ["image_id", "No finding"], [])


def xray(path: Path, pixels: np.ndarray, inverted: bool) -> None:
    import pydicom
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import DigitalXRayImageStorageForPresentation as KIND
    from pydicom.uid import ExplicitVRLittleEndian, generate_uid

    path.parent.mkdir(parents=True, exist_ok=True)
    one = Dataset()
    one.file_meta = FileMetaDataset()
    one.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    one.file_meta.MediaStorageSOPClassUID = one.SOPClassUID = KIND
    one.file_meta.MediaStorageSOPInstanceUID = one.SOPInstanceUID = generate_uid()
    one.Rows, one.Columns = pixels.shape
    one.SamplesPerPixel = 1
    one.PhotometricInterpretation = "MONOCHROME1" if inverted else "MONOCHROME2"
    one.BitsAllocated, one.BitsStored, one.HighBit, one.PixelRepresentation = 16, 12, 11, 0
    one.PatientName = "Real^Name"
    stored = 4095 - pixels if inverted else pixels
    one.PixelData = stored.astype("<u2").tobytes()
    pydicom.dcmwrite(path, one, enforce_file_format=True)


def vqa_rad(folder: Path) -> None:
    images = folder / "VQA_RAD Image Folder"
    images.mkdir()
    rows = []
    planes = ("Axial", "Coronal", "Sagittal", "PA", "AP")
    for n in range(40):
        name = f"synpic{100 + n // 2}.jpg"
        photo(n // 2, 80).convert("L").save(images / name)
        closed = n % 2 == 0
        rows.append(
            {
                "qid": n,
                "phrase_type": "freeform" if n % 5 else "test_freeform",
                "qid_linked_id": f"link{n}",
                "image_case_url": "https://medpix.nlm.nih.gov/case?id=1",
                "image_name": name,
                "image_organ": "CHEST",
                "evaluation": "evaluated",
                "question": f"Is there a mass {n}?" if closed else f"What is the plane {n}?",
                "question_rephrase": "NULL",
                "question_relation": "NULL",
                "question_frame": "NULL",
                "question_type": "PRES" if closed else "PLANE",
                "answer": ("Yes" if n % 4 else "No") if closed else planes[n % 5],
                "answer_type": "CLOSED " if closed else "OPEN",
            }
        )
    rows.append({**rows[0], "qid": 900, "phrase_type": "para"})
    rows.append({**rows[1], "qid": 901, "answer": "a very long description of many words indeed"})
    (folder / "VQA_RAD Dataset Public.json").write_text(json.dumps(rows))


def slake(folder: Path) -> None:
    organs = ("Liver", "Heart", "Spleen", "Kidney", "Lung")
    rows = []
    for n in range(30):
        place = folder / "imgs" / f"xmlab{n // 2}"
        place.mkdir(parents=True, exist_ok=True)
        photo(n // 2, 120).convert("L").save(place / "source.jpg")
        closed = n % 2 == 0
        rows.append(
            {
                "img_id": n // 2,
                "img_name": f"xmlab{n // 2}/source.jpg",
                "question": f"Is it healthy {n}?" if closed else f"Which organ is it {n}?",
                "answer": ("Yes" if n % 4 else "No") if closed else organs[n % 5],
                "q_lang": "en" if n < 28 else "zh",
                "location": "Abdomen",
                "modality": "CT",
                "answer_type": "CLOSED" if closed else "OPEN",
                "base_type": "vqa",
                "content_type": "Abnormality" if closed else "Organ",
                "triple": ["vhead", "_", "_"],
                "qid": n,
            }
        )
    (folder / "train.json").write_text(json.dumps(rows[:20]))
    (folder / "validate.json").write_text(json.dumps(rows[20:24]))
    (folder / "test.json").write_text(json.dumps(rows[24:]))


REPORTS = (
    "There is a small left pleural effusion. The heart is normal in size.",
    "No pleural effusion or pneumothorax. The lungs are clear.",
    "Right pneumothorax. Cardiomegaly.",
    "Atelectasis at the bases. No consolidation.",
    "Possible pneumonia in the right lung.",  # in doubt: left out
    "There is a pleural effusion.",  # no side: left out
)


def chexpert_plus(folder: Path) -> None:
    header = "path_to_image path_to_dcm frontal_lateral ap_pa deid_patient_id "
    header += "patient_report_date_order report section_findings section_impression split"
    rows = []
    for n in range(24):
        patient = f"patient{n // 2:05d}"
        for view in ("view1_frontal", "view2_lateral")[: 1 + n % 2]:
            name = f"train/{patient}/study{n % 2 + 1}/{view}.jpg"
            path = folder / "PNG" / Path(name).with_suffix(".png")
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((radiograph(n + len(view)) >> 8).astype(np.uint8)).save(path)
            text = REPORTS[n % len(REPORTS)]
            rows.append([name, "", "Frontal", "AP", patient, n % 2, text, text, "", "train"])
    table(folder / "df_chexpert_plus_240401.csv", header.split(), rows)


def mimic_cxr(folder: Path) -> None:
    rows = []
    for n in range(18):
        subject, study = f"1000{n // 2:04d}", f"5000{n:04d}"
        place = folder / "files" / "p10" / f"p{subject}"
        (place / f"s{study}").mkdir(parents=True)
        for view in ("PA", "LATERAL"):
            dicom = f"{n:08x}-{len(view):08x}"
            image = Image.fromarray((radiograph(n * 3 + len(view)) >> 8).astype(np.uint8))
            image.save(place / f"s{study}" / f"{dicom}.jpg")
            rows.append([dicom, subject, study, "CHEST (PA AND LAT)", view, 80, 64])
        body = REPORTS[n % 4]
        (place / f"s{study}.txt").write_text(
            f" FINAL REPORT\n EXAMINATION: CHEST\n\n INDICATION: Left pneumothorax?\n\n"
            f" FINDINGS: \n \n {body}\n\n IMPRESSION: \n \n {body}\n"
        )
    header = (
        "dicom_id subject_id study_id PerformedProcedureStepDescription ViewPosition Rows Columns"
    )
    table(folder / "mimic-cxr-2.0.0-metadata.csv.gz", header.split(), rows)


def write_bundle(folder: Path) -> Path:
    """A tiny MONAI bundle without our own blocks in its metadata, and without a probe."""
    import torch
    from monai.networks.nets import UNet

    network = {
        "spatial_dims": 2,
        "in_channels": 1,
        "out_channels": 2,
        "channels": [4, 8],
        "strides": [2],
    }
    (folder / "configs").mkdir(parents=True)
    (folder / "models").mkdir()
    (folder / "docs").mkdir()
    (folder / "docs" / "README.md").write_text("# A net\n")
    inference = {"network_def": {"_target_": "UNet", **network}, "network": "$@network_def"}
    (folder / "configs" / "inference.json").write_text(json.dumps(inference))
    image = {"type": "image", "num_channels": 1, "spatial_shape": ["8*n", "8*n"]}
    image |= {"dtype": "float32", "value_range": [0, 1]}
    outputs = {"pred": {"num_channels": 2, "channel_def": {"0": "background", "1": "organ"}}}
    metadata = {
        "version": "0.1.0",
        "network_data_format": {"inputs": {"image": image}, "outputs": outputs},
    }
    (folder / "configs" / "metadata.json").write_text(json.dumps(metadata))
    torch.manual_seed(0)
    torch.save(UNet(**network).state_dict(), folder / "models" / "model.pt")
    return folder


WRITERS: dict[str, Callable[[Path], None]] = {
    "kits19": kits19,
    "msd": msd,
    "totalsegmentator": totalsegmentator,
    "aeropath": aeropath,
    "ldct": ldct,
    "paired": paired,
    "synthrad2025": synthrad2025,
    "ham10000": ham10000,
    "isic2018": isic2018,
    "grazpedwri": grazpedwri,
    "vindr_cxr": vindr_cxr,
    "vqa_rad": vqa_rad,
    "slake": slake,
    "chexpert_plus": chexpert_plus,
    "mimic_cxr": mimic_cxr,
}


def copied(source: Path, target: Path) -> Path:
    """A copy of a layout that a test may spoil."""
    shutil.copytree(source, target)
    return target
