//! Where in a file the tap symbol is, and on which of its instructions a probe is cheap.
//!
//! A file tells it by its USDT note (provider `tokengauge`, probe `tap_v1`), which neither `strip` nor hidden symbols take away, or by its
//! symbol, which anything may export that has no note. Only section headers, notes and the dynamic symbols are read, and the local ones of
//! an executable: every file that is mapped anywhere is looked at once.

use std::fs::File;
use std::path::Path;

use object::elf;
use object::read::ReadCache;
use object::read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _, Sym as _};
use object::{Endianness, ReadRef as _};

/// The function.
pub const SYMBOL: &str = "tokengauge_tap_v1";

/// Most bytes of a section of notes that are read.
const MAX_NOTES: u64 = 1 << 20;

/// Most entries of a symbol table that are looked through.
const MAX_SYMBOLS: usize = 4_000_000;

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
    let cache = ReadCache::new(File::open(path)?);
    Ok(find(&cache, executable).unwrap_or_default())
}

type Header = elf::FileHeader64<Endianness>;

fn find(data: &ReadCache<File>, executable: bool) -> Option<Vec<Site>> {
    let header = Header::parse(data).ok()?;
    let endian = header.endian().ok()?;
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
        let symbols = sections.symbols(endian, data, kind).ok()?;
        let ours = symbols.iter().take(MAX_SYMBOLS).find(|s| {
            !s.is_undefined(endian) && s.st_value(endian) != 0 && s.name(endian, symbols.strings()).is_ok_and(|n| n == SYMBOL.as_bytes())
        });
        at = ours.map(|s| s.st_value(endian));
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
    fn what_is_no_such_file_has_no_place() {
        assert_eq!(places(Path::new("/proc/self/maps"), true).unwrap(), []);
        assert!(places(Path::new("/nowhere"), true).is_err());
    }
}
