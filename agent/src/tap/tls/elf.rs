//! What the tap needs of an ELF file: where functions are, and their code. Read in pieces: a static binary may be 100 MB.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use object::{Architecture, Object as _, ObjectSection as _, ObjectSegment as _, ObjectSymbol as _, ReadCache, SectionKind, SymbolKind};

/// The functions of an ELF file by name, and its code.
pub struct Image {
    x86_64: bool,
    /// Name to address and size (0: unknown).
    named: BTreeMap<String, (u64, u64)>,
    /// Starts of functions, to bound those without a size.
    starts: Vec<u64>,
    segments: Vec<Segment>,
    plt: Vec<(u64, u64)>,
}

struct Segment {
    address: u64,
    file_offset: u64,
    executable: Option<Vec<u8>>,
    len: u64,
}

/// Code segments above this size are not read whole; only pages around the named functions matter, but simplicity wins below it.
const MAX_CODE: u64 = 256 << 20;

impl Image {
    /// Reads a file if it has all the functions `required`, among its dynamic symbols or else its local ones.
    ///
    /// # Errors
    /// When the file cannot be opened; a file that is no ELF, or lacks the functions, is `None`.
    pub fn open(path: &Path, required: &[&str], interesting: &[&str]) -> std::io::Result<Option<Self>> {
        let cache = ReadCache::new(File::open(path)?);
        let Ok(file) = object::File::parse(&cache) else { return Ok(None) };
        let mut named = BTreeMap::new();
        let mut starts = Vec::new();
        let note = |named: &mut BTreeMap<String, (u64, u64)>, starts: &mut Vec<u64>, symbol: &object::Symbol<'_, '_, _>| {
            if symbol.kind() != SymbolKind::Text || symbol.is_undefined() || symbol.address() == 0 {
                return;
            }
            starts.push(symbol.address());
            if let Ok(name) = symbol.name()
                && interesting.contains(&name)
            {
                named.entry(name.to_owned()).or_insert((symbol.address(), symbol.size()));
            }
        };
        for symbol in file.dynamic_symbols() {
            note(&mut named, &mut starts, &symbol);
        }
        if !required.iter().all(|name| named.contains_key(*name)) {
            named.clear();
            starts.clear();
            for symbol in file.symbols() {
                note(&mut named, &mut starts, &symbol);
            }
            if !required.iter().all(|name| named.contains_key(*name)) {
                return Ok(None);
            }
        }
        starts.sort_unstable();
        starts.dedup();
        let mut segments = Vec::new();
        for segment in file.segments() {
            let (file_offset, len) = segment.file_range();
            let executable = matches!(segment.flags(), object::SegmentFlags::Elf { p_flags, .. } if p_flags.contains(object::elf::PF_X));
            let code = (executable && len <= MAX_CODE).then(|| segment.data().ok().map(<[u8]>::to_vec)).flatten();
            segments.push(Segment { address: segment.address(), file_offset, executable: code, len });
        }
        let plt = file
            .sections()
            .filter(|s| s.kind() == SectionKind::Text && s.name().is_ok_and(|n| n.starts_with(".plt")))
            .map(|s| (s.address(), s.address() + s.size()))
            .collect();
        Ok(Some(Self { x86_64: file.architecture() == Architecture::X86_64, named, starts, segments, plt }))
    }

    /// An image of bare code at an address, for tests of the planner.
    #[cfg(test)]
    pub(super) fn of_code(address: u64, code: &[u8], named: &[(&str, u64, u64)]) -> Self {
        let segment = Segment { address, file_offset: 0, executable: Some(code.to_vec()), len: code.len() as u64 };
        let mut starts: Vec<u64> = named.iter().map(|n| n.1).collect();
        starts.sort_unstable();
        Self {
            x86_64: true,
            named: named.iter().map(|(n, a, s)| ((*n).to_owned(), (*a, *s))).collect(),
            starts,
            segments: vec![segment],
            plt: vec![],
        }
    }

    /// Whether the planner can read its code.
    pub const fn is_x86_64(&self) -> bool {
        self.x86_64
    }

    /// Address and size of a function.
    pub fn function(&self, name: &str) -> Option<(u64, u64)> {
        self.named.get(name).copied()
    }

    /// A function's size: its symbol's, else up to the next symbol, at most a page.
    pub(super) fn size_of_function(&self, address: u64) -> u64 {
        if let Some((_, size)) = self.named.values().find(|(a, size)| *a == address && *size > 0) {
            return *size;
        }
        let next = self.starts.get(self.starts.partition_point(|s| *s <= address)).copied();
        next.map_or(4096, |next| (next - address).min(4096))
    }

    /// Where an address is in the file.
    pub fn file_offset(&self, address: u64) -> Option<u64> {
        let segment = self.segments.iter().find(|s| (s.address..s.address + s.len).contains(&address))?;
        Some(address - segment.address + segment.file_offset)
    }

    /// Whether there is code at an address.
    pub(super) fn is_code(&self, address: u64) -> bool {
        self.code(address, 1).is_some()
    }

    /// Whether an address is a stub to another library's function.
    pub(super) fn is_plt(&self, address: u64) -> bool {
        self.plt.iter().any(|(start, end)| (*start..*end).contains(&address))
    }

    /// Up to `len` bytes of code.
    pub(super) fn code(&self, address: u64, len: u64) -> Option<Vec<u8>> {
        let segment = self.segments.iter().find(|s| (s.address..s.address + s.len).contains(&address))?;
        let code = segment.executable.as_ref()?.get(usize::try_from(address - segment.address).ok()?..)?;
        Some(code.get(..usize::try_from(len).ok()?.min(code.len()))?.to_vec())
    }
}
