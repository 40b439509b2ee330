"""Image goldens: small files of every format, and the outputs of Pillow and of transformers' PIL
processors.

    python tools/goldens/images.py OUT        (crates/testkit/goldens/images)

Writes OUT/*.{png,jpg,…}; NAME.rgb (height × width × 3 bytes) beside those that decoders may round
differently; decode.json, resize.json and pixels.json.
"""

import hashlib, io, json, struct, sys, zlib
from pathlib import Path

import numpy as np
import tifffile
from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngInfo
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

OUT = Path(sys.argv[1])
W, H = 21, 13
cases = []
sha = lambda a: hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest()[:32]


def noise(width, height, seed):
    """Noise that the tests also compute: the top byte of a multiplicative hash of the position."""
    i = np.arange(width * height * 3, dtype=np.uint64) + np.uint64(seed * 1_000_003 + 1)
    x = i * np.uint64(0x9E3779B97F4A7C15)
    x ^= x >> np.uint64(29)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    return (x >> np.uint64(56)).astype(np.uint8).reshape(height, width, 3)


def scene(width=W, height=H):
    """Gradients, an edge and a little noise: closer to a photograph than noise alone."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    a = np.stack([x * 255 / width, y * 255 / height, 128 + 100 * np.sin(x / 3) * np.cos(y / 4)], -1)
    a[(x - width / 2) ** 2 + (y - height / 2) ** 2 < (height / 4) ** 2] = (230, 40, 60)
    return np.clip(a + noise(width, height, 9) / 32.0, 0, 255).astype(np.uint8)


def add(name, data, kind="exact"):
    """kind: exact; near (another decoder may round differently); refused (by Sconce: Pillow has
    more formats)."""
    (OUT / name).write_bytes(data)
    case = {"file": name, "kind": kind}
    if kind != "refused":
        rgb = np.array(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
        case |= {"width": rgb.shape[1], "height": rgb.shape[0], "sha256": sha(rgb)}
        if kind == "near":
            (OUT / f"{name}.rgb").write_bytes(rgb.tobytes())
    cases.append(case)


def save(image, form, **how):
    b = io.BytesIO()
    image.save(b, form, **how)
    return b.getvalue()


def png(array, depth, color, extra=b"", interlace=False, width=None):
    """A PNG that Pillow would not write."""
    chunk = lambda t, d: struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d))
    row = lambda r: b"\0" + (r.astype(">u2").tobytes() if depth == 16 else r.tobytes())
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    parts = [array[y::dy, x::dx] for x, y, dx, dy in passes] if interlace else [array]
    raw = b"".join(row(r) for part in parts if part.shape[1] for r in part)
    head = struct.pack(">IIBBBBB", width or array.shape[1], array.shape[0], depth, color, 0, 0, int(interlace))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + extra + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


def trns(data):
    return struct.pack(">I", len(data)) + b"tRNS" + data + struct.pack(">I", zlib.crc32(b"tRNS" + data))


def exif(orientation):
    e = Image.Exif()
    e[0x112] = orientation
    return e.tobytes()


def xmp(orientation):
    return f'<x:xmpmeta xmlns:x="adobe:ns:meta/"><a tiff:Orientation="{orientation}"/></x:xmpmeta>'.encode()


rgb = Image.fromarray(scene())
alpha = Image.fromarray(np.arange(W * H, dtype=np.uint64).reshape(H, W).astype(np.uint8))
rgba = rgb.copy()
rgba.putalpha(alpha)
grey = rgb.convert("L")
palette = rgb.quantize(13)
wide = (noise(W, H * 2, 3).astype(np.uint16) << 8 | noise(W, H * 2, 4)).reshape(H, W, 6)

# PNG
add("rgb.png", save(rgb, "PNG"))
add("rgba.png", save(rgba, "PNG"))
add("grey.png", save(grey, "PNG"))
add("grey_alpha.png", save(rgba.convert("LA"), "PNG"))
add("bits1.png", save(grey.convert("1"), "PNG"))
packed = lambda a, bits: np.packbits(np.unpackbits(a[..., None], axis=-1)[..., 8 - bits:].reshape(H, -1), axis=-1)
for bits in (2, 4):
    add(f"bits{bits}.png", png(packed(np.array(grey) >> (8 - bits), bits), bits, 0, width=W))
add("palette.png", save(palette, "PNG"))
add("palette_alpha.png", save(palette, "PNG", transparency=bytes(range(0, 260, 20))))
add("palette_index.png", save(palette, "PNG", transparency=3))
add("grey_transparent.png", save(grey, "PNG", transparency=int(np.array(grey)[0, 0])))
add("grey16.png", png(np.where(wide[..., 0] % 2, wide[..., 0], wide[..., 0] % 300), 16, 0))
add("grey16_transparent.png", png(wide[..., 0] % 400, 16, 0, trns(b"\x00\x11")))
add("grey_alpha16.png", png(wide[..., :2], 16, 4))
add("rgb16.png", png(wide[..., :3], 16, 2))
add("rgba16.png", png(wide[..., :4], 16, 6))
add("interlaced.png", png(scene(), 8, 2, interlace=True))
add("animated.png", save(rgb, "PNG", save_all=True, append_images=[ImageOps.invert(rgb)]))
add("apart.png", save(rgb, "PNG", save_all=True, default_image=True, append_images=[ImageOps.invert(rgb)]))
add("exif6.png", save(rgb, "PNG", exif=exif(6)))
info = PngInfo()
info.add_itxt("XML:com.adobe.xmp", xmp(8).decode())
add("xmp8.png", save(rgb, "PNG", pnginfo=info))
info = PngInfo()
info.add_itxt("XML:com.adobe.xmp", xmp(7).decode(), zip=True)
add("xmp7_packed.png", save(rgb, "PNG", pnginfo=info))
plain = save(rgb, "PNG")
late = struct.pack(">I", len(exif(6)) - 6) + b"eXIf" + exif(6)[6:]
add("exif6_late.png", plain[:-12] + late + struct.pack(">I", zlib.crc32(late[4:])) + plain[-12:])

# JPEG
for sub in ("4:4:4", "4:2:2", "4:2:0"):
    add(f"{sub.replace(':', '')}.jpg", save(rgb, "JPEG", quality=90, subsampling=sub), "near")
add("grey.jpg", save(grey, "JPEG", quality=90), "near")
add("progressive.jpg", save(rgb, "JPEG", quality=90, progressive=True), "near")
add("restart.jpg", save(rgb, "JPEG", quality=90, restart_marker_rows=1), "near")
add("kept_rgb.jpg", save(rgb, "JPEG", quality=90, keep_rgb=True), "near")
for o in range(1, 9):
    add(f"exif{o}.jpg", save(rgb, "JPEG", quality=90, subsampling=0, exif=exif(o)), "near")
add("xmp5.jpg", save(rgb, "JPEG", quality=90, subsampling=0, xmp=xmp(5)), "near")
add("exif3_xmp5.jpg", save(rgb, "JPEG", quality=90, subsampling=0, exif=exif(3), xmp=xmp(5)), "near")
add("exif1_xmp5.jpg", save(rgb, "JPEG", quality=90, subsampling=0, exif=exif(1), xmp=xmp(5)), "near")
ink = Image.merge("CMYK", [*rgb.split(), alpha])
cmyk = save(ink, "JPEG", quality=95)
at = cmyk.index(b"\xff\xee\x00\x0eAdobe")
add("cmyk.jpg", cmyk, "near")
add("ycck.jpg", cmyk[:at + 15] + b"\x02" + cmyk[at + 16:], "near")
add("cmyk_unmarked.jpg", cmyk[:at] + cmyk[at + 16:], "near")

# GIF
gif = save(palette, "GIF")
add("still.gif", gif)
add("interlaced.gif", save(palette, "GIF", interlace=True))
add("transparent.gif", save(palette, "GIF", transparency=2))
add("animated.gif", save(palette, "GIF", save_all=True, append_images=[ImageOps.invert(rgb)], duration=50))
add("grey.gif", save(grey, "GIF"))


def moved(data, screen, left, top):
    i = data.index(b"\x2c\0\0\0\0" + struct.pack("<HH", W, H))
    return data[:6] + struct.pack("<HH", *screen) + data[10:i + 1] + struct.pack("<HH", left, top) + data[i + 5:]


add("uncovered.gif", moved(gif, (W + 6, H + 5), 2, 3))
add("uncovered_transparent.gif", moved(save(palette, "GIF", transparency=2), (W + 6, H + 5), 2, 3))
add("beyond.gif", moved(gif, (W - 6, H - 5), 1, 2))

# WebP
add("lossless.webp", save(rgb, "WEBP", lossless=True))
add("lossless_alpha.webp", save(rgba, "WEBP", lossless=True, exact=True))
add("lossy.webp", save(rgb, "WEBP", quality=90))
add("lossy_alpha.webp", save(rgba, "WEBP", quality=90))
add("animated.webp", save(rgb, "WEBP", lossless=True, save_all=True, append_images=[ImageOps.invert(rgb)]))
add("animated_alpha.webp", save(rgba, "WEBP", lossless=True, exact=True, save_all=True, append_images=[rgb]))
add("exif7.webp", save(rgb, "WEBP", lossless=True, exif=exif(7)))

# BMP
add("rgb.bmp", save(rgb, "BMP"))
add("palette.bmp", save(palette, "BMP"))
add("grey.bmp", save(grey, "BMP"))
add("bits1.bmp", save(grey.convert("1"), "BMP"))
add("rgba.bmp", save(rgba, "BMP"))
rows = b"".join((r.astype("<u2").tobytes() + b"\0\0\0")[:(W * 2 + 3) // 4 * 4] for r in wide[::-1, :, 0] & 0x7FFF)
add("bits15.bmp", b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54 + len(rows), 0, 0, 54, 40, W, H, 1, 16, 0, len(rows), 0, 0, 0, 0) + rows, "near")

# TIFF
add("rgb.tif", save(rgb, "TIFF"))
for how in ("tiff_lzw", "tiff_adobe_deflate", "packbits"):
    add(f"{how}.tif", save(rgb, "TIFF", compression=how))
add("grey.tif", save(grey, "TIFF"))
add("bits1.tif", save(grey.convert("1"), "TIFF"))
tags = Image.Exif()
tags[0x112] = 6
add("exif6.tif", save(rgb, "TIFF", exif=tags))


def tiff(array, **how):
    b = io.BytesIO()
    tifffile.imwrite(b, array, metadata=None, software=None, **how)
    return b.getvalue()


add("white_is_zero.tif", tiff(np.array(grey), photometric="miniswhite"))
add("planar.tif", tiff(scene().transpose(2, 0, 1).copy(), photometric="rgb", planarconfig="separate"))
add("rgb16.tif", tiff(wide[..., :3].copy(), photometric="rgb"))
add("rgba.tif", save(rgba, "TIFF"), "refused")
add("cmyk.tif", save(ink, "TIFF"), "refused")
add("palette.tif", save(palette, "TIFF"), "refused")
add("float.tif", tiff(scene().astype(np.float32)[..., 0].copy(), photometric="minisblack"), "refused")

(OUT / "decode.json").write_text("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")

# Resizing noise: every filter, up and down, even and odd, one pixel, one side only.
sizes = [(1, 1, 5, 7), (7, 5, 1, 1), (3, 200, 64, 2), (200, 3, 2, 64), (64, 64, 64, 64), (64, 48, 64, 24), (64, 48, 32, 48),
         (37, 53, 224, 224), (500, 375, 298, 224), (640, 480, 224, 224), (97, 31, 96, 30), (96, 30, 97, 31), (2, 2, 333, 111),
         (1000, 10, 7, 9), (10, 1000, 9, 7), (255, 256, 128, 127), (123, 77, 41, 200), (1, 300, 3, 224), (300, 1, 224, 3),
         (999, 101, 13, 512)]
# Around the size where Pillow 13 resizes columns first: 2 × 10 fewer, one more and one less; and
# enlargements.
sizes += [(50, 80 + d, 40, 60) for d in (-1, 0, 1)] + [(50, 80, 50 + d, 79) for d in (-1, 0, 1)] + [(50, 60, 70, 60), (20, 60, 40, 70)]
rng = np.random.default_rng(1)
sizes += [tuple(int(n) for n in rng.integers(1, 160, 4)) for _ in range(40)]
resizes = [[f, *s, sha(np.array(Image.fromarray(noise(s[0], s[1], i)).resize(s[2:], f)))] for i, s in enumerate(sizes) for f in range(6)]
(OUT / "resize.json").write_text("[\n" + ",\n".join(json.dumps(r) for r in resizes) + "\n]\n")

# Processors with the settings of published files, on noise of several shapes.
CLIP = {"mean": [0.48145466, 0.4578275, 0.40821073], "std": [0.26862954, 0.26130258, 0.27577711]}
clip_old = {"crop_size": 224, "do_center_crop": True, "do_normalize": True, "do_resize": True, "feature_extractor_type": "CLIPFeatureExtractor",
            "image_mean": CLIP["mean"], "image_std": CLIP["std"], "resample": 3, "size": 224}
clip_new = {"crop_size": {"height": 224, "width": 224}, "do_center_crop": True, "do_convert_rgb": True, "do_normalize": True,
            "do_rescale": True, "do_resize": True, "image_mean": CLIP["mean"], "image_std": CLIP["std"], "image_processor_type": "CLIPImageProcessor",
            "resample": 3, "rescale_factor": 0.00392156862745098, "size": {"shortest_edge": 224}}
siglip = {"do_normalize": True, "do_rescale": True, "do_resize": True, "image_mean": [0.5] * 3, "image_processor_type": "SiglipImageProcessor",
          "image_std": [0.5] * 3, "processor_class": "SiglipProcessor", "resample": 3, "rescale_factor": 0.00392156862745098,
          "size": {"height": 224, "width": 224}}
configs = {
    "clip_old": clip_old, "clip_new": clip_new, "siglip": siglip,
    "clip_bare": {"image_processor_type": "CLIPImageProcessor"}, "siglip_bare": {"image_processor_type": "SiglipImageProcessor"},
    "siglip2": siglip | {"resample": 2, "do_convert_rgb": None, "size": {"height": 256, "width": 256}},
    "tall": siglip | {"size": {"height": 40, "width": 24}, "image_mean": 0.4, "image_std": [0.1, 0.2, 0.3]},
    "padded": clip_new | {"size": {"shortest_edge": 20}, "crop_size": {"height": 33, "width": 30}},
    "odd": clip_new | {"size": 31, "crop_size": [20, 17], "resample": 1},
    "unsized": clip_new | {"do_resize": False, "crop_size": 50},
    "unscaled": clip_new | {"do_rescale": False},
    "unnormalised": clip_new | {"do_normalize": False, "rescale_factor": 0.01},
}
shapes = [(640, 480), (480, 641), (224, 224), (225, 301), (17, 90), (1, 1), (1, 50), (3, 2), (300, 40), (51, 50)]
pixels = []
for name, config in configs.items():
    kind = SiglipImageProcessorPil if "Siglip" in json.dumps(config) else CLIPImageProcessorPil
    make = kind(**{k: v for k, v in config.items() if not k.endswith("_type") and k != "processor_class"})
    shas = []
    for i, (w, h) in enumerate(shapes):
        v = make(Image.fromarray(noise(w, h, i)), return_tensors="np")["pixel_values"][0]
        assert v.dtype == np.float32, v.dtype
        shas.append([w, h, list(v.shape), sha(v), [float(x) for x in v.ravel()[[0, v.size // 2, v.size - 1]]]])
    pixels.append({"name": name, "config": config, "pictures": shas})
(OUT / "pixels.json").write_text("[\n" + ",\n".join(json.dumps(p) for p in pixels) + "\n]\n")
