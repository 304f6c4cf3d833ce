"""Writes tests/data/pictures.jsonl: small picture files, and what Pillow makes of them as Qwen's image processor uses it.

Needs Pillow below 13, which resamples rows first, as when these models were trained; run it from anywhere. Of lossless files a line has a hash of the pixels, of others the pixels themselves.
"""
from __future__ import annotations

import base64
import io
import json
import math
from pathlib import Path

from PIL import Image, ImageDraw, ImageOps

OUT = Path(__file__).resolve().parents[1] / "data" / "pictures.jsonl"
ORIENTATION = 0x0112


def smart_resize(height: int, width: int, side: int, least: int, most: int) -> tuple[int, int]:
    """The rule of transformers' Qwen2VLImageProcessor."""
    new_height, new_width = round(height / side) * side, round(width / side) * side
    if new_height * new_width > most:
        beta = math.sqrt(height * width / most)
        new_height = max(side, math.floor(height / beta / side) * side)
        new_width = max(side, math.floor(width / beta / side) * side)
    elif new_height * new_width < least:
        beta = math.sqrt(least / (height * width))
        new_height, new_width = math.ceil(height * beta / side) * side, math.ceil(width * beta / side) * side
    return new_height, new_width


def fnv1a(data: bytes) -> str:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def drawn(mode: str, width: int, height: int) -> Image.Image:
    """Ramps, sharp edges and, in modes with alpha, all degrees of it."""
    image = Image.new("RGB", (width, height))
    image.putdata([(x * 255 // width, y * 255 // height, (x * 7 + y * 13) % 256) for y in range(height) for x in range(width)])
    pen = ImageDraw.Draw(image)
    pen.ellipse((width // 4, height // 4, width // 2, height * 3 // 4), fill=(255, 0, 40))
    pen.line((0, height - 1, width, 0), fill=(0, 0, 0), width=2)
    if mode in ("RGBA", "LA"):
        image.putalpha(Image.linear_gradient("L").resize((width, height)))
    if mode == "P":
        return image.quantize(32)
    return image.convert(mode)


def encoded(image: Image.Image, kind: str, turn: int, **options) -> bytes:
    if turn:
        exif = Image.Exif()
        exif[ORIENTATION] = turn
        options["exif"] = exif
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def seen(data: bytes, side: int, least: int, most: int) -> Image.Image:
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("RGB")
    height, width = smart_resize(image.height, image.width, side, least, most)
    return image.resize((width, height), Image.Resampling.BICUBIC)


def pictures():
    """Name, file, least and most pixels, and the greatest difference of a byte."""
    least, most = 3136, 40000
    for width, height in ((64, 64), (97, 61), (33, 200), (5, 300), (300, 211), (16, 48), (240, 112), (1, 1)):
        yield f"png-{width}x{height}", encoded(drawn("RGB", width, height), "PNG", 0), least, most, 0
    for mode in ("L", "LA", "RGBA", "P", "1"):
        yield f"png-{mode}", encoded(drawn(mode, 90, 70), "PNG", 0), least, most, 0
    yield "png-palette-alpha", encoded(drawn("P", 80, 50), "PNG", 0, transparency=bytes(range(0, 256, 8))), least, most, 0
    yield "png-transparent-color", encoded(drawn("RGB", 70, 70), "PNG", 0, transparency=(255, 0, 40)), least, most, 0
    yield "png-small-is-enlarged", encoded(drawn("RGB", 40, 30), "PNG", 0), 65536, 71680, 0
    yield "png-large-is-reduced", encoded(drawn("L", 400, 300), "PNG", 0), 1024, 4096, 0
    yield "png-tall-is-reduced", encoded(drawn("RGB", 3, 600), "PNG", 0), 1024, 15360, 0
    for turn in range(1, 9):
        yield f"png-turn-{turn}", encoded(drawn("RGB", 60, 35), "PNG", turn), least, most, 0
    for mode in ("RGB", "RGBA"):
        yield f"webp-{mode}", encoded(drawn(mode, 60, 44), "WEBP", 0, lossless=True, exact=True), least, most, 0
    yield "webp-turn-6", encoded(drawn("RGB", 60, 44), "WEBP", 6, lossless=True), least, most, 0
    frames = [drawn("P", 50, 50), drawn("P", 50, 50).transpose(Image.Transpose.ROTATE_90)]
    yield "gif", encoded(frames[0], "GIF", 0), least, most, 0
    yield "gif-first-frame", encoded(frames[0], "GIF", 0, save_all=True, append_images=frames[1:]), least, most, 0
    yield "gif-transparent", encoded(frames[0], "GIF", 0, transparency=3), least, most, 0
    smooth = Image.radial_gradient("L").resize((64, 64))
    color = Image.merge("RGB", (smooth, smooth.transpose(Image.Transpose.ROTATE_90), ImageOps.invert(smooth)))
    for mode, turn in (("L", 0), ("RGB", 0), ("CMYK", 0), ("RGB", 3), ("RGB", 6)):
        data = encoded(color.convert(mode), "JPEG", turn, quality=95, subsampling=0)
        yield f"jpeg-{mode}-turn-{turn}", data, 1024, 2048, 1
    yield "jpeg-progressive", encoded(color, "JPEG", 8, quality=95, subsampling=0, progressive=True), 1024, 2048, 1
    yield "jpeg-subsampled", encoded(color, "JPEG", 0, quality=90, subsampling=2), 1024, 2048, 2
    yield "webp-lossy", encoded(color, "WEBP", 0, quality=90), 1024, 2048, 1


def main() -> None:
    with OUT.open("w") as out:
        for name, data, least, most, near in pictures():
            image = seen(data, 32, least, most)
            pixels = image.tobytes()
            expected = {"near": near, "rgb": base64.b64encode(pixels).decode()} if near else {"fnv1a": fnv1a(pixels)}
            line = {"name": name, "min_pixels": least, "max_pixels": most, "width": image.width, "height": image.height}
            out.write(json.dumps(line | expected | {"file": base64.b64encode(data).decode()}) + "\n")


if __name__ == "__main__":
    main()
