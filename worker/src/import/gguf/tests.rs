//! What a header gives, what it is refused for, and that no bytes whatever make it panic.

use std::io::Cursor as Bytes;

use proptest::prelude::*;

use super::writer::Writer;
use super::*;

const F32: u32 = 0;
const Q4_0: u32 = 2;
const Q4_K: u32 = 12;

fn read(bytes: &[u8]) -> Result<Header, GgufError> {
    Header::read(Bytes::new(bytes), bytes.len() as u64)
}

fn small() -> Writer {
    Writer::default()
        .text("general.architecture", "llama")
        .u32("count", 7)
        .f32("eps", 1e-5)
        .texts("words", &["a", "bé"])
        .i32s("types", &[1, -3])
        .tensor("matrix", &[32, 2], Q4_0, &[5; 36])
        .tensor("vector", &[3], F32, &[1; 12])
}

fn refusal(writer: &Writer) -> String {
    read(&writer.bytes()).expect_err("refused").to_string()
}

#[test]
fn a_header_gives_its_entries_and_tensors() {
    let bytes = small().bytes();
    let header = read(&bytes).expect("valid");
    let metadata = &header.metadata;
    assert_eq!(metadata.text("general.architecture").expect("there"), "llama");
    assert_eq!(metadata.unsigned("count").expect("there"), 7);
    assert_eq!(metadata.float_opt("eps").expect("a float"), Some(1e-5));
    assert_eq!(metadata.texts("words").expect("there"), ["a", "bé"]);
    assert_eq!(metadata.integers("types").expect("there"), [1, -3]);
    assert!(matches!(metadata.unsigned("nothing"), Err(GgufError::MissingKey(_))));
    assert!(matches!(metadata.unsigned("eps"), Err(GgufError::KeyType { .. })));

    let [matrix, vector] = header.tensors.as_slice() else { panic!("two tensors") };
    assert_eq!((matrix.shape.as_slice(), matrix.encoding), (&[2, 32][..], Encoding::Q4_0));
    assert_eq!((matrix.row_bytes(), vector.row_bytes()), (18, 12));
    assert_eq!(read_tensor(Bytes::new(&bytes), matrix).expect("readable"), [5; 36]);
    assert_eq!(read_tensor(Bytes::new(&bytes), vector).expect("readable"), [1; 12]);
}

#[test]
fn every_refusal_says_what_and_where() {
    let cases = [
        (
            small().u32("general.alignment", 24),
            "metadata `general.alignment` is 24: a power of two",
        ),
        (small().raw("odd", 77, &[]), "metadata `odd` has the unknown value type 77"),
        (small().array("nested", 9, 1, &[0; 12]), "metadata `nested` has the unknown value type 9"),
        (small().array("long", 0, 1 << 40, &[]), "an array's length at byte"),
        (small().raw("text", 8, &[2, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]), "is not UTF-8"),
        (
            small().tensor("k", &[256, 1], Q4_K, &[0; 144]),
            "tensor `k` is Q4_K, which no MLX format",
        ),
        (small().tensor("k", &[256, 1], 99, &[]), "tensor `k` is of the unknown encoding 99"),
        (small().tensor("k", &[33], Q4_0, &[0; 36]), "tensor `k` has the shape [33]"),
        (small().tensor("k", &[], F32, &[]), "it needs one to four dimensions"),
        (small().tensor("k", &[u64::MAX, 3], F32, &[]), "tensor `k` has the shape"),
        (small().tensor("k", &[4096], F32, &[0; 4]), "reach past the end of the file"),
        (small().tensor("k", &[0], F32, &[]), "it must be positive"),
    ];
    for (writer, expected) in cases {
        let message = refusal(&writer);
        assert!(message.contains(expected), "{message:?} should contain {expected:?}");
    }
}

#[test]
fn duplicates_and_overlaps_are_refused() {
    let bytes = small().bytes();
    let patched = |from: &str, to: &str| {
        let at = bytes.windows(from.len()).position(|w| w == from.as_bytes()).expect("there");
        let mut bytes = bytes.clone();
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        read(&bytes).expect_err("refused").to_string()
    };
    assert_eq!(patched("vector", "matrix"), "`matrix` appears twice");
    assert_eq!(patched("words", "count"), "`count` appears twice");

    // The second tensor's offset, eight bytes before the padding that ends the header.
    let mut overlapping = bytes.clone();
    let offset = 64_u64.to_le_bytes();
    let at = bytes.windows(8).rposition(|w| w == offset).expect("the offset of `vector`");
    overlapping[at..at + 8].copy_from_slice(&32_u64.to_le_bytes());
    let message = read(&overlapping).expect_err("refused").to_string();
    assert!(message.contains("overlap"), "{message}");
}

#[test]
fn foreign_files_are_named() {
    let mut bytes = small().bytes();
    bytes[4] = 1;
    assert!(matches!(read(&bytes), Err(GgufError::Version(1))));
    bytes[4..8].copy_from_slice(&3_u32.to_be_bytes());
    assert!(matches!(read(&bytes), Err(GgufError::BigEndian)));
    bytes[0] = b'X';
    assert!(matches!(read(&bytes), Err(GgufError::Magic(_))));
    assert!(matches!(read(b"GG"), Err(GgufError::Truncated { .. })));
}

#[test]
fn a_cut_file_is_refused_wherever_it_is_cut() {
    let bytes = small().bytes();
    for length in 0..bytes.len() - 31 {
        assert!(read(&bytes[..length]).is_err(), "cut at {length} of {}", bytes.len());
    }
}

proptest! {
    /// Mutations of a valid header: it is read or refused, and what is read lies inside the file.
    #[test]
    fn no_mutation_panics(edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut bytes = small().bytes();
        for (index, value) in edits {
            let at = index.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(header) = read(&bytes) {
            for tensor in &header.tensors {
                let data = read_tensor(Bytes::new(&bytes), tensor).expect("inside the file");
                prop_assert_eq!(data.len() as u64, tensor.nbytes);
            }
        }
    }

    /// Counts and lengths of any size, without the bytes they promise.
    #[test]
    fn a_lying_count_is_not_believed(tensors in any::<u64>(), entries in any::<u64>(), rest in prop::collection::vec(any::<u8>(), 0..64)) {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(tensors.to_le_bytes());
        bytes.extend(entries.to_le_bytes());
        bytes.extend(rest);
        if let Ok(header) = read(&bytes) {
            prop_assert!(header.tensors.len() <= 1);
        }
    }
}
