//! Lies a header can tell, one by one, and random bytes.

use proptest::prelude::*;

use super::*;

/// The header's verdict on `json` in a file whose data is `data_bytes` long.
fn parse(json: &str, data_bytes: u64) -> Result<Vec<TensorEntry>, HeaderError> {
    parse_header(json.as_bytes(), PREFIX_BYTES + json.len() as u64 + data_bytes)
}

fn message(json: &str, data_bytes: u64) -> String {
    parse(json, data_bytes).expect_err("a lie").to_string()
}

#[test]
fn a_sound_header_gives_its_tensors_in_file_order() {
    let json = r#"{"__metadata__":{"format":"mlx"},
        "b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},
        "empty":{"dtype":"U8","shape":[0],"data_offsets":[4,4]},
        "a":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]}}"#;
    let entries = parse(json, 12).expect("sound");
    let names: Vec<_> = entries.iter().map(|e| e.name.as_str()).collect();
    assert_eq!(names, ["a", "empty", "b"]);
    assert_eq!(entries[2].offset, PREFIX_BYTES + json.len() as u64 + 4);
    assert_eq!((entries[0].dtype, &entries[0].shape[..]), (StoredType::Bf16, &[2, 1][..]));
}

#[test]
fn a_header_longer_than_its_file_is_refused_before_it_is_read() {
    let refused = header_length(1_000_000u64.to_le_bytes(), 108).expect_err("too long");
    assert_eq!(refused, HeaderError::TooLong { claimed: 1_000_000, available: 100 });
    assert!(header_length(u64::MAX.to_le_bytes(), u64::MAX).is_err());
    assert!(header_length((MAX_HEADER_BYTES + 1).to_le_bytes(), 1 << 40).is_err());
    assert_eq!(header_length(100u64.to_le_bytes(), 108), Ok(100));
}

#[test]
fn duplicate_names_are_refused() {
    let one = r#""a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}"#;
    assert!(message(&format!("{{{one},{one}}}"), 1).contains("`a` occurs twice"));
    assert!(message(r#"{"__metadata__":{},"__metadata__":{}}"#, 0).contains("occurs twice"));
}

#[test]
fn overlaps_and_gaps_are_refused() {
    let two = |second: &str| {
        format!(
            r#"{{"a":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}},
                "b":{{"dtype":"U8","shape":[4],"data_offsets":{second}}}}}"#
        )
    };
    assert!(message(&two("[2,6]"), 6).contains("tensor `b`: its data overlaps"));
    assert!(message(&two("[0,4]"), 4).contains("overlaps"));
    assert!(message(&two("[6,10]"), 10).contains("2 bytes of data before offset 6"));
    assert!(message(&two("[4,8]"), 9).contains("1 bytes of data before offset 9"));
    assert!(parse(&two("[4,8]"), 8).is_ok());
}

#[test]
fn offsets_and_shapes_must_agree() {
    let one = |shape: &str, offsets: &str| {
        format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    assert!(message(&one("[1]", "[-4,0]"), 4).contains("invalid value: integer `-4`"));
    assert!(message(&one("[1]", "[4,0]"), 4).contains("data at 4..0"));
    assert!(message(&one("[2]", "[0,8]"), 4).contains("data at 0..8 of 4 bytes"));
    assert!(message(&one("[2]", "[0,4]"), 4).contains("F32 [2] does not have 4 bytes"));
    let huge = "[4294967296,4294967296,4294967296]";
    assert!(message(&one(huge, "[0,4]"), 4).contains("does not have 4 bytes"));
    assert!(message(&one("[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4).contains("9 dimensions"));
    assert!(message(&one("[1.5]", "[0,4]"), 4).contains("not valid"));
    assert!(message(&one("[1e400]", "[0,4]"), 4).contains("not valid"));
}

#[test]
fn unknown_types_and_fields_are_refused() {
    let with = |entry: &str| message(&format!(r#"{{"a":{{{entry}}}}}"#), 1);
    assert!(with(r#""dtype":"F4","shape":[1],"data_offsets":[0,1]"#).contains("F4"));
    assert!(with(r#""dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1"#).contains("`x`"));
    assert!(with(r#""dtype":"U8","shape":[1]"#).contains("data_offsets"));
    assert!(message("[]", 0).contains("an object of tensors"));
}

#[test]
fn more_tensors_than_allowed_are_refused() {
    let one = |i: usize| format!(r#""{i}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#);
    let json: Vec<_> = (0..=MAX_TENSORS).map(one).collect();
    assert!(message(&format!("{{{}}}", json.join(",")), 0).contains("more than 65536 tensors"));
}

fn tiles(entries: &[TensorEntry], start: u64, end: u64) -> bool {
    let mut at = start;
    entries.iter().all(|entry| {
        let sound = entry.offset == at
            && entry.nbytes == entry.shape.iter().product::<usize>() * entry.dtype.size();
        at += entry.nbytes as u64;
        sound
    }) && at == end
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse_header(&bytes, bytes.len() as u64 + 40);
    }

    /// Random small offsets mostly lie; whatever passes must tile the data exactly.
    #[test]
    fn what_passes_tiles_the_file(
        tensors in proptest::collection::vec((0u64..6, 0u64..6, 0u64..6), 0..4),
        data_bytes in 0u64..16,
    ) {
        let entries: Vec<_> = tensors.iter().enumerate().map(|(i, (dim, begin, end))| {
            format!(r#""t{i}":{{"dtype":"U8","shape":[{dim}],"data_offsets":[{begin},{end}]}}"#)
        }).collect();
        let json = format!("{{{}}}", entries.join(","));
        let start = PREFIX_BYTES + json.len() as u64;
        if let Ok(entries) = parse(&json, data_bytes) {
            prop_assert!(tiles(&entries, start, start + data_bytes));
        }
    }
}
