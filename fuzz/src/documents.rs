//! Bytes as a file. The first byte says which file it is to be.

use std::sync::LazyLock;

use pilotfish_config::parse::Parsed;

use crate::pipeline::{read, read_mesh, read_networks, timed, translate};

/// Good meshes of our own writing.
pub const MESHES: [&str; 5] = [
    include_str!("../meshes/routes.yaml"),
    include_str!("../meshes/entries.yaml"),
    include_str!("../meshes/gateway.yaml"),
    include_str!("../meshes/views.yaml"),
    include_str!("../meshes/policies.yaml"),
];
/// Good settings of the mesh.
pub const MESH_CONFIG: &str = include_str!("../meshes/mesh-config.yaml");
/// Good networks.
pub const MESH_NETWORKS: &str = include_str!("../meshes/mesh-networks.yaml");

const CONFIG_FILE: u8 = b'M';
const NETWORKS_FILE: u8 = b'N';

/// What the input is put beside: a mesh that works.
static GOOD: LazyLock<Parsed> = LazyLock::new(|| read(MESHES[0]));

/// One input.
pub fn run(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    let text = String::from_utf8_lossy(rest);
    trace!("{text}");
    timed(|| match *first {
        CONFIG_FILE => {
            if let Some(mesh) = read_mesh(&text) {
                translate(&GOOD, &GOOD, Some(mesh), None);
            }
        }
        NETWORKS_FILE => {
            if let Some(networks) = read_networks(&text) {
                translate(&GOOD, &GOOD, None, Some(networks));
            }
        }
        _ => {
            let mut parsed = read(&text);
            let own: Vec<_> = parsed.objects.iter().map(|o| o.key.clone()).collect();
            let others = GOOD.objects.iter().filter(|o| !own.contains(&o.key));
            if !parsed.objects.is_empty() {
                parsed.objects.extend(others.cloned());
                translate(&GOOD, &parsed, None, None);
            }
        }
    });
}

/// Pieces of good files: bytes alone would take years to find the name of a field.
static DOCUMENTS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let file = |first: u8, text: &str| [&[first][..], text.as_bytes()].concat();
    let mut all: Vec<Vec<u8>> = MESHES
        .iter()
        .flat_map(|mesh| mesh.split("\n---\n"))
        .map(|document| file(b' ', document))
        .collect();
    all.push(file(CONFIG_FILE, MESH_CONFIG));
    all.push(file(NETWORKS_FILE, MESH_NETWORKS));
    all
});

/// Words and values of the good files, and syntax that parsers stumble over.
static WORDS: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let texts = MESHES.iter().chain([&MESH_CONFIG, &MESH_NETWORKS]);
    let is_word = |c: char| c.is_alphanumeric() || "-_./".contains(c);
    let mut words: Vec<&str> = texts
        .flat_map(|t| t.split(|c: char| !is_word(c)))
        .filter(|w| w.len() > 1)
        .collect();
    words.sort_unstable();
    words.dedup();
    words.extend([
        "---\n",
        "...\n",
        "%YAML 1.2\n",
        "&a ",
        "*a",
        "<<: ",
        "? ",
        ": ",
        "- ",
        "!!binary ",
        "!!str ",
        "|\n ",
        ">-\n  ",
        "\t",
        "{",
        "}",
        "[",
        "]",
        "[[[[[[[[",
        "{a: {a: {a: ",
        "\u{feff}",
        "\u{85}",
        "\u{2028}",
        "\"\\x00\"",
        "\"\\ud800\"",
        "0x7fffffff",
        "1e999",
        ".inf",
        ".nan",
        "~",
        "null",
        "99999999999999999999",
        "-1",
        "0",
        "65536",
        "4294967296",
        "1_000",
        "0o777",
        "+1",
        "1s",
        "9999999h",
        "*",
        "\"\"",
        "''",
        "#",
        " #",
        "kind: List\nitems:\n",
    ]);
    words
});

/// Puts `piece` into `data` at `at`, over what is there if `over`; the new size.
fn insert(data: &mut [u8], size: usize, max: usize, at: usize, piece: &[u8], over: bool) -> usize {
    let max = max.min(data.len());
    let kept = if over { piece.len().min(size - at) } else { 0 };
    let tail = data[at + kept..size].to_vec();
    let end = (at + piece.len()).min(max);
    data[at..end].copy_from_slice(&piece[..end - at]);
    let last = (end + tail.len()).min(max);
    data[end..last].copy_from_slice(&tail[..last - end]);
    last
}

/// Makes one input of another; `ordinary` is libFuzzer's own way. Returns the new size.
pub fn mutate(
    data: &mut [u8],
    size: usize,
    max: usize,
    seed: u32,
    ordinary: impl Fn(&mut [u8], usize, usize) -> usize,
) -> usize {
    let at = |n: usize| (seed as usize >> 8) % n.max(1);
    let other = |n: usize| (seed.wrapping_mul(0x9e37_79b9) as usize >> 7) % n.max(1);
    let all = &*DOCUMENTS;
    match seed % 16 {
        // A good document, to be spoilt later.
        0 | 1 if size < 64 || seed & 16 == 0 => insert(data, 0, max, 0, &all[at(all.len())], true),
        // One more.
        2 if size > 0 => {
            let more = [b"\n---\n", &all[at(all.len())][1..]].concat();
            insert(data, size, max, size, &more, false)
        }
        3..=6 if size > 0 => {
            let word = WORDS[at(WORDS.len())].as_bytes();
            insert(data, size, max, 1 + other(size), word, seed & 64 == 0)
        }
        // A line of a good document between two lines.
        7 | 8 if size > 0 => {
            let from = &all[at(all.len())];
            let lines: Vec<&[u8]> = from[1..].split_inclusive(|b| *b == b'\n').collect();
            let line = lines[other(lines.len())];
            let breaks: Vec<usize> = (0..size).filter(|i| data[*i] == b'\n').collect();
            let place = breaks.get(other(breaks.len())).map_or(size, |i| i + 1);
            insert(data, size, max, place, line, false)
        }
        _ => ordinary(data, size, max),
    }
}
