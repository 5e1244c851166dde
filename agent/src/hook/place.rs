//! Where in a file the tap symbol is, and on which of its instructions a probe is cheap.
//!
//! A file tells it by its USDT note (provider `tokengauge`, probe `tap_v1`), which neither `strip` nor hidden symbols take away, or by its
//! symbol, which anything may export that has no note. Only section headers, notes and the dynamic symbols are read, and the local ones of
//! an executable: every file that is mapped anywhere is looked at once.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use object::elf;
use object::read::ReadCache;
use object::read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _};
use object::{Endianness, ReadRef as _};

/// The function.
pub const SYMBOL: &str = "tokengauge_tap_v1";

/// Most bytes of a section of notes that are read.
const MAX_NOTES: u64 = 1 << 20;

/// Most bytes of a table of symbols, or of their names, that are looked through.
const MAX_TABLE: u64 = 512 << 20;

/// Bytes read at once: executables with a hundred megabytes of names cost no more memory than this.
const PIECE: usize = 64 * 1024;

/// Bytes of one symbol (`Elf64_Sym`).
const SYMBOL_SIZE: usize = 24;

/// An instruction that a probe may stand on. Arguments are where a call leaves them on each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// Offset in the file.
    pub offset: u64,
    /// What it is.
    pub instruction: Instruction,
}

/// What stands there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Instruction {
    /// A nop of so many bytes.
    Nop(u8),
    /// Something else: the function's first instruction.
    Other,
}

/// The tap symbol's places in a file; none when the file has no such function. The first one is where every kernel can put a probe.
///
/// # Errors
/// When the file cannot be opened. What is no 64-bit ELF file has no places.
pub fn places(path: &Path, executable: bool) -> std::io::Result<Vec<Site>> {
    let file = File::open(path)?;
    let cache = ReadCache::new(file.try_clone()?);
    Ok(find(&file, &cache, executable).unwrap_or_default())
}

type Header = elf::FileHeader64<Endianness>;

fn find(file: &File, data: &ReadCache<File>, executable: bool) -> Option<Vec<Site>> {
    let header = Header::parse(data).ok()?;
    // Machines that eBPF programs of ours run on are little-endian.
    let endian = header.endian().ok().filter(|e| *e == Endianness::Little)?;
    let segments = header.program_headers(endian, data).ok()?;
    let sections = header.sections(endian, data).ok()?;
    let named = |name: &[u8]| sections.iter().find(|s| sections.section_name(endian, s).is_ok_and(|n| n == name));

    let mut at = None;
    if let Some(section) = named(b".note.stapsdt")
        && section.sh_size(endian) <= MAX_NOTES
    {
        let (offset, size) = (section.sh_offset(endian), section.sh_size(endian));
        let base = named(b".stapsdt.base").map(|s| s.sh_addr(endian));
        at = noted(data.read_bytes_at(offset, size).ok()?, base);
    }
    for kind in [elf::SHT_DYNSYM, elf::SHT_SYMTAB] {
        if at.is_some() || kind == elf::SHT_SYMTAB && !executable {
            break;
        }
        let Some(table) = sections.iter().find(|s| s.sh_type(endian) == kind) else { continue };
        let names = sections.section(object::SectionIndex(table.sh_link(endian) as usize)).ok()?;
        let place = |s: &elf::SectionHeader64<Endianness>| (s.sh_offset(endian), s.sh_size(endian).min(MAX_TABLE));
        at = symbol(file, place(table), place(names));
    }
    let at = at?;
    let segment = segments.iter().find(|s| {
        let from = s.p_vaddr(endian);
        s.p_type(endian) == elf::PT_LOAD && (from..from.saturating_add(s.p_filesz(endian))).contains(&at)
    })?;
    let within = at - segment.p_vaddr(endian);
    let offset = segment.p_offset(endian).checked_add(within)?;
    let code = data.read_bytes_at(offset, (segment.p_filesz(endian) - within).min(24)).ok()?;
    Some(nops(header.e_machine(endian), code, offset))
}

/// The address of our symbol. Its name is looked for first, and is nowhere in nearly every file; tables are offset and size.
fn symbol(file: &File, symbols: (u64, u64), names: (u64, u64)) -> Option<u64> {
    let named = search(file, names, format!("{SYMBOL}\0").as_bytes())?;
    let (mut at, end) = (symbols.0, symbols.0.checked_add(symbols.1)?);
    let mut piece = vec![0; PIECE / SYMBOL_SIZE * SYMBOL_SIZE];
    while at < end {
        let some = read_at(file, at, end, &mut piece)?;
        for symbol in some.chunks_exact(SYMBOL_SIZE) {
            let name = symbol.first_chunk().map(|b| u32::from_le_bytes(*b));
            let undefined = symbol.get(6..8) == Some(&[0, 0]);
            let value = word(symbol, 8).filter(|v| *v != 0);
            if name.is_some_and(|n| u64::from(n) == named) && !undefined && value.is_some() {
                return value;
            }
        }
        at += some.len() as u64;
    }
    None
}

/// Where `wanted` is in a part of a file, from the part's beginning.
fn search(file: &File, (from, len): (u64, u64), wanted: &[u8]) -> Option<u64> {
    let end = from.checked_add(len)?;
    let (mut at, mut piece) = (from, vec![0; PIECE]);
    loop {
        let some = read_at(file, at, end, &mut piece)?;
        if let Some(found) = memchr::memmem::find(some, wanted) {
            return Some(at - from + found as u64);
        }
        if some.len() < PIECE {
            return None;
        }
        // It may lie across two pieces.
        at += (some.len() - wanted.len() + 1) as u64;
    }
}

/// The next bytes, as many as there is room for, up to `end`; `None` when there are none.
fn read_at<'a>(file: &File, at: u64, end: u64, room: &'a mut [u8]) -> Option<&'a [u8]> {
    let wanted = usize::try_from(end.checked_sub(at)?).unwrap_or(usize::MAX).min(room.len());
    let room = room.get_mut(..wanted)?;
    file.read_exact_at(room, at).ok()?;
    (!room.is_empty()).then_some(room)
}

/// The address in our note, as it is when `base` is where `.stapsdt.base` is now (a prelinked file was moved after its notes were written).
fn noted(notes: &[u8], base: Option<u64>) -> Option<u64> {
    let mut rest = notes;
    while let [a, b, c, d, e, f, g, h, i, j, k, l, body @ ..] = rest {
        let name = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
        let size = u32::from_le_bytes([*e, *f, *g, *h]) as usize;
        let kind = u32::from_le_bytes([*i, *j, *k, *l]);
        let from = name.checked_next_multiple_of(4)?;
        let described = body.get(from..from.checked_add(size)?)?;
        if kind == 3 && body.get(..name)? == b"stapsdt\0" {
            let (address, noted_base) = (word(described, 0)?, word(described, 8)?);
            let mut names = described.get(24..)?.split(|b| *b == 0);
            if (names.next(), names.next()) == (Some(&b"tokengauge"[..]), Some(&b"tap_v1"[..])) {
                return Some(address.wrapping_add(base.unwrap_or(noted_base).wrapping_sub(noted_base)));
            }
        }
        rest = body.get(from.checked_add(size.checked_next_multiple_of(4)?)?..)?;
    }
    None
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The nops that the function begins with, each a place; its first instruction, when that is none.
fn nops(machine: elf::Machine, code: &[u8], offset: u64) -> Vec<Site> {
    let (skipped, known): (&[&[u8]], &[&[u8]]) = match machine {
        // endbr64
        elf::EM_X86_64 => (
            &[&[0xf3, 0x0f, 0x1e, 0xfa]],
            &[&[0x90], &[0x0f, 0x1f, 0x44, 0x00, 0x00], &[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00]],
        ),
        // bti c
        elf::EM_AARCH64 => (&[&[0x5f, 0x24, 0x03, 0xd5]], &[&[0x1f, 0x20, 0x03, 0xd5]]),
        _ => (&[], &[]),
    };
    let mut at = skipped.iter().find(|s| code.starts_with(s)).map_or(0, |s| s.len());
    let mut sites = Vec::new();
    while let Some(nop) = known.iter().find(|n| code.get(at..).is_some_and(|c| c.starts_with(n))) {
        sites.push(Site { offset: offset + at as u64, instruction: Instruction::Nop(u8::try_from(nop.len()).unwrap_or(u8::MAX)) });
        at += nop.len();
    }
    if sites.is_empty() {
        sites.push(Site { offset, instruction: Instruction::Other });
    }
    sites
}

/// The place to take of those of a file, by what proved cheapest.
pub fn best(sites: &[Site], cheapest: Instruction) -> Option<Site> {
    sites.iter().find(|s| s.instruction == cheapest).or(sites.first()).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_executable_has_the_symbol_and_its_nops() {
        // Linked in by the agent itself, which tries its probes on it.
        std::hint::black_box(tokengauge_tap::address());
        let sites = places(Path::new("/proc/self/exe"), true).unwrap();
        let own = crate::tap::tls::selftest::own_place(tokengauge_tap::address()).map(|(_, offset)| offset);
        let (first, shown) = (sites[0].offset, sites.iter().map(|s| (s.offset - sites[0].offset, s.instruction)).collect::<Vec<_>>());
        #[cfg(target_arch = "x86_64")]
        {
            assert_eq!(own, Some(first));
            assert_eq!(shown, [(0, Instruction::Nop(1)), (1, Instruction::Nop(5)), (6, Instruction::Nop(10))]);
            assert_eq!(best(&sites, Instruction::Nop(5)).map(|s| s.offset), Some(first + 1));
        }
        #[cfg(target_arch = "aarch64")]
        {
            assert_eq!(own, Some(first - 4));
            assert_eq!(shown, [(0, Instruction::Nop(4)), (4, Instruction::Nop(4))]);
        }
    }

    #[test]
    fn functions_of_other_bytes_have_one_place() {
        let site = |code: &[u8]| nops(elf::EM_X86_64, code, 64);
        assert_eq!(site(&[0x55, 0x90]), [Site { offset: 64, instruction: Instruction::Other }]);
        assert_eq!(site(&[0xf3, 0x0f, 0x1e, 0xfa, 0x90, 0xc3]), [Site { offset: 68, instruction: Instruction::Nop(1) }]);
        assert_eq!(nops(elf::EM_RISCV, &[0x90], 64), [Site { offset: 64, instruction: Instruction::Other }]);
        assert_eq!(best(&[], Instruction::Nop(5)), None);
    }

    #[test]
    fn notes_are_read_and_moved() {
        let note = |provider: &str, address: u64| {
            let mut described = Vec::new();
            for word in [address, 0x2000_u64, 0] {
                described.extend(word.to_le_bytes());
            }
            described.extend(format!("{provider}\0tap_v1\0008@%rdi\0").bytes());
            let mut note = Vec::new();
            for field in [8, described.len() as u32, 3] {
                note.extend(field.to_le_bytes());
            }
            note.extend(b"stapsdt\0");
            note.extend(&described);
            note.resize(note.len().next_multiple_of(4), 0);
            note
        };
        let notes = [note("libc", 1), note("tokengauge", 0x1200)].concat();
        assert_eq!(
            (noted(&notes, Some(0x2000)), noted(&notes, Some(0x3000)), noted(&notes, None)),
            (Some(0x1200), Some(0x2200), Some(0x1200))
        );
        assert_eq!(noted(&note("libc", 1), None), None);
        for cut in 0..notes.len() {
            let _ = noted(&notes[..cut], None);
        }
        let huge = [8_u32, u32::MAX, 3].map(u32::to_le_bytes).concat();
        assert_eq!(noted(&huge, None), None);
    }

    #[test]
    fn a_symbol_is_found_without_a_note_and_only_where_it_is_defined() {
        // Names with ours across two pieces; symbols: one that is undefined, one of another name, ours.
        let mut names = vec![b'x'; PIECE - 5];
        names.push(0);
        let ours = names.len() as u32;
        names.extend(b"tokengauge_tap_v1\0other\0");
        let entry = |name: u32, section: u16, value: u64| {
            let mut entry = name.to_le_bytes().to_vec();
            entry.extend([0x12, 0]);
            entry.extend(section.to_le_bytes());
            entry.extend(value.to_le_bytes());
            entry.extend([0; 8]);
            entry
        };
        let others: Vec<u8> = (0..5_000).flat_map(|i| entry(i, 1, 64)).collect();
        let symbols = [others, entry(ours, 0, 0), entry(ours + 1, 1, 99), entry(ours, 7, 0x1234)].concat();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tables");
        std::fs::write(&path, [&symbols[..], &names].concat()).unwrap();
        let file = File::open(&path).unwrap();
        let (first, second) = ((0, symbols.len() as u64), (symbols.len() as u64, names.len() as u64));
        assert_eq!(symbol(&file, first, second), Some(0x1234));
        assert_eq!(symbol(&file, (0, first.1 - SYMBOL_SIZE as u64), second), None);
        assert_eq!(symbol(&file, first, (second.0, second.1 - 12)), None);
        assert_eq!(symbol(&file, first, (second.0, second.1 + 1)), None, "tables that reach over the file's end");
    }

    #[test]
    fn what_is_no_such_file_has_no_place() {
        assert_eq!(places(Path::new("/proc/self/maps"), true).unwrap(), []);
        assert!(places(Path::new("/nowhere"), true).is_err());
    }
}
