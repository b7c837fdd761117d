//! Memory for weights: huge pages where the system has them.
//!
//! Owns [`Region`], aligned to a cache line and zero until written. Regions are cut from chunks of whole huge pages,
//! because a model has hundreds of matrices smaller than one: with 4 KiB pages a pass over the weights would spend a
//! tenth of its time or more in page walks. A chunk is returned when the last region in it goes.

use std::num::NonZeroUsize;
use std::ops::{Deref, DerefMut};
use std::os::raw::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

const HUGE_PAGE: usize = 2 << 20;
/// Bytes asked of the system at once; a larger region gets a chunk of its own.
const CHUNK: usize = 32 << 20;
const LINE: usize = 64;

/// A part of a chunk. It is never handed out twice.
#[derive(Debug)]
pub(super) struct Region {
    chunk: Arc<Chunk>,
    offset: usize,
    len: usize,
}

/// Anonymous memory of the system.
#[derive(Debug)]
struct Chunk {
    map: NonNull<c_void>,
    mapped: usize,
    /// First byte used, on a huge page.
    start: usize,
}

// SAFETY: the mapping is owned, and reached only through regions, which do not overlap.
unsafe impl Send for Chunk {}
// SAFETY: as above.
unsafe impl Sync for Chunk {}

/// The chunk that regions are being cut from, and how much of it is used.
static CURRENT: Mutex<Option<(Arc<Chunk>, usize)>> = Mutex::new(None);

impl Region {
    /// `len` zero bytes.
    ///
    /// # Panics
    ///
    /// If the system has no memory to give.
    pub(super) fn zeroed(len: usize) -> Self {
        let taken = len.next_multiple_of(LINE);
        if taken > CHUNK / 2 {
            return Self { chunk: Arc::new(Chunk::new(taken)), offset: 0, len };
        }
        let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((chunk, used)) = &mut *current
            && CHUNK - *used >= taken
        {
            let offset = *used;
            *used += taken;
            return Self { chunk: Arc::clone(chunk), offset, len };
        }
        let chunk = Arc::new(Chunk::new(CHUNK));
        *current = Some((Arc::clone(&chunk), taken));
        Self { chunk, offset: 0, len }
    }
}

impl Chunk {
    fn new(len: usize) -> Self {
        // One huge page more than needed, to begin on one.
        let mapped = len.next_multiple_of(HUGE_PAGE) + HUGE_PAGE;
        let length = NonZeroUsize::new(mapped).expect("at least a huge page");
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new private mapping at an address of the system's choice.
        let map = unsafe { mmap_anonymous(None, length, access, MapFlags::MAP_PRIVATE) };
        let map = map.unwrap_or_else(|errno| panic!("no memory for {mapped} bytes: {errno}"));
        let start = map.as_ptr().addr().next_multiple_of(HUGE_PAGE) - map.as_ptr().addr();
        #[cfg(target_os = "linux")]
        {
            use nix::sys::mman::{MmapAdvise, madvise};
            // SAFETY: advice on our own mapping. Without huge pages it fails, and all is as before but slower.
            let advice = unsafe { madvise(map, mapped, MmapAdvise::MADV_HUGEPAGE) };
            tracing::trace!(mapped, ?advice, "mapped memory for weights");
        }
        Self { map, mapped, start }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, and the last region is gone.
        let unmapped = unsafe { munmap(self.map, self.mapped) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: within the chunk, initialised by the system, and ours alone.
        unsafe {
            let start = self.chunk.map.as_ptr().cast::<u8>().add(self.chunk.start + self.offset);
            std::slice::from_raw_parts(start, self.len)
        }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `&mut self` keeps this slice the only one.
        unsafe {
            let start = self.chunk.map.as_ptr().cast::<u8>().add(self.chunk.start + self.offset);
            std::slice::from_raw_parts_mut(start, self.len)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CHUNK, LINE, Region};

    #[test]
    fn regions_are_zero_aligned_and_apart() {
        let sizes = [1, 64, 100, CHUNK / 2, CHUNK / 2, 12_345, CHUNK + 1];
        let mut regions: Vec<Region> = sizes.into_iter().map(Region::zeroed).collect();
        for (i, region) in regions.iter_mut().enumerate() {
            assert_eq!(region.as_ptr().addr() % LINE, 0);
            assert!(region.first() == Some(&0) && region.last() == Some(&0));
            region.fill(i as u8 + 1);
        }
        for (i, region) in regions.iter().enumerate() {
            assert!(region.iter().all(|&byte| byte == i as u8 + 1));
        }
    }
}
