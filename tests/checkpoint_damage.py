"""Ways in which a checkpoint comes to harm, each a few lines: `damage(directory, ["zero-tail", file, 4096])`."""

import json
import os
import struct

from opslib.onhost.safetensors_header import read_header

INDEX = "model.safetensors.index.json"
TEXTS = {
    "lfs-pointer": "version https://git-lfs.github.com/spec/v1\noid sha256:" + "ab" * 32 + "\nsize 123456\n",
    "html": "<!DOCTYPE html>\n<html><title>Sign in</title></html>\n",
    "error": '{"error": "Repository not found"}',
}


def damage(directory, step):
    """Do one step of a case."""
    name, *arguments = step
    _STEPS[name](directory, *arguments)


def put(file, content):
    """Replace a file's bytes; through a symlink, the blob's."""
    file.write_bytes(content)


def remove(directory, file):
    (directory / file).unlink()


def rename(directory, file, to):
    (directory / file).rename(directory / to)


def copy(directory, file, to):
    put(directory / to, (directory / file).read_bytes())


def truncate(directory, file, by):
    os.truncate(directory / file, (directory / file).stat().st_size - by)


def cut(directory, file, to):
    os.truncate(directory / file, to)


def write(directory, file, text):
    (directory / file).parent.mkdir(parents=True, exist_ok=True)
    (directory / file).write_text(TEXTS.get(text, text))


def header_text(directory, file, raw):
    """Another header of the same length."""
    content = (directory / file).read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    put(directory / file, content[:8] + raw.encode().ljust(length) + content[8 + length :])


def header_claims(directory, file, exponent):
    content = (directory / file).read_bytes()
    put(directory / file, struct.pack("<Q", 2**exponent) + content[8:])


def header_edit(directory, file, number, key, value):
    """Change one entry of the number-th tensor by its place in the file."""
    content = (directory / file).read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    names = sorted((n for n in header if n != "__metadata__"), key=lambda n: header[n]["data_offsets"])
    header[names[number]][key] = value
    raw = json.dumps(header, separators=(",", ":")).encode()
    put(directory / file, struct.pack("<Q", len(raw)) + raw + content[8 + length :])


def header_rename(directory, file, number, to):
    """Give the number-th tensor another name."""
    content = (directory / file).read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    names = sorted((n for n in header if n != "__metadata__"), key=lambda n: header[n]["data_offsets"])
    header[to] = header.pop(names[number])
    raw = json.dumps(header, separators=(",", ":")).encode()
    put(directory / file, struct.pack("<Q", len(raw)) + raw + content[8 + length :])


def overlap(directory, file):
    """Let the second tensor begin within the first."""
    content = (directory / file).read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    names = sorted((n for n in header if n != "__metadata__"), key=lambda n: header[n]["data_offsets"])
    begin, end = header[names[1]]["data_offsets"]
    header[names[1]]["data_offsets"] = [begin - 64, end - 64]
    raw = json.dumps(header, separators=(",", ":")).encode()
    put(directory / file, struct.pack("<Q", len(raw)) + raw + content[8 + length :])


def index_name(directory, tensor, shard):
    index = json.loads((directory / INDEX).read_text())
    index["weight_map"][tensor] = shard
    (directory / INDEX).write_text(json.dumps(index))


def index_total(directory, total):
    index = json.loads((directory / INDEX).read_text())
    index["metadata"]["total_size"] = total
    (directory / INDEX).write_text(json.dumps(index))


def zero_tail(directory, file, size):
    content = (directory / file).read_bytes()
    put(directory / file, content[:-size] + bytes(size))


def hole_tail(directory, file, size):
    """The file was reserved and its end never written."""
    path = directory / file
    whole = path.stat().st_size
    os.truncate(path, whole - size)
    os.truncate(path, whole)


def tensor_place(directory, file, name):
    path = directory / file
    tensors, begin, _ = read_header(str(path), path.stat().st_size)
    found = next(tensor for tensor in tensors if name in tensor.name)
    return path, begin + found.begin, begin + found.end


def zero_tensor(directory, file, name):
    path, begin, end = tensor_place(directory, file, name)
    content = bytearray(path.read_bytes())
    content[begin:end] = bytes(end - begin)
    put(path, content)


def special(directory, file, name, element, raw):
    """Write the bytes (hexadecimal) of one value into a tensor."""
    path, begin, _ = tensor_place(directory, file, name)
    value = bytes.fromhex(raw)
    content = bytearray(path.read_bytes())
    at = begin + element * len(value)
    content[at : at + len(value)] = value
    put(path, content)


def flip(directory, file, at):
    """One bit, the size and all times but the ctime as they were."""
    path = directory / file
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    with path.open("r+b") as opened:
        opened.write(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def swap(directory, one, other):
    """Exchange two files' contents, times included."""
    first, second = (directory / one), (directory / other)
    times = [path.stat().st_mtime_ns for path in (first, second)]
    contents = first.read_bytes(), second.read_bytes()
    put(first, contents[1])
    put(second, contents[0])
    for path, ns in zip((first, second), times, strict=True):
        os.utime(path, ns=(ns, ns))


def dangle(directory, file):
    """Remove what a symlink leads to, or make the file one that leads nowhere."""
    path = directory / file
    if path.is_symlink():
        path.resolve().unlink()
    else:
        path.unlink()
        path.symlink_to("../blobs/gone")


def loop(directory, file):
    path = directory / file
    path.unlink(missing_ok=True)
    path.symlink_to(path.name)


def mode(directory, file, bits):
    (directory / file).chmod(int(bits, 8))


def note_commit(directory, file, commit):
    """Another commit in the note of `hf download`."""
    note = directory / f".cache/huggingface/download/{file}.metadata"
    note.write_text("\n".join([commit, *note.read_text().splitlines()[1:]]) + "\n")


def touch(directory, file):
    os.utime(directory / file)


_STEPS = {
    "remove": remove,
    "rename": rename,
    "copy": copy,
    "truncate": truncate,
    "cut": cut,
    "write": write,
    "header-text": header_text,
    "header-claims": header_claims,
    "header-edit": header_edit,
    "header-rename": header_rename,
    "overlap": overlap,
    "index-name": index_name,
    "index-total": index_total,
    "zero-tail": zero_tail,
    "hole-tail": hole_tail,
    "zero-tensor": zero_tensor,
    "special": special,
    "flip": flip,
    "swap": swap,
    "dangle": dangle,
    "loop": loop,
    "mode": mode,
    "note-commit": note_commit,
    "touch": touch,
}
