//! Just enough of BTF to learn where `struct sock` keeps its ends on the running kernel.
//!
//! Not a BTF library: it walks the types once, finds members by name through anonymous structures, and knows nothing else.
//! Format: Linux `Documentation/bpf/btf.rst` §2.

use tokengauge_ebpf_common::SockOffsets;

/// The kernel's own BTF.
pub(super) const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;

struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Offset of each type within `types`; type ids begin at 1.
    index: Vec<u32>,
}

struct Member {
    name: u32,
    of: u32,
    bit: u32,
}

impl<'a> Btf<'a> {
    fn parse(data: &'a [u8]) -> Option<Self> {
        if data.get(..2)? != [0x9f, 0xeb] {
            return None;
        }
        let header = usize::try_from(u32_at(data, 4)?).ok()?;
        let part = |offset: usize, len: usize| {
            let start = header.checked_add(usize::try_from(u32_at(data, offset)?).ok()?)?;
            data.get(start..start.checked_add(usize::try_from(u32_at(data, len)?).ok()?)?)
        };
        let (types, strings) = (part(8, 12)?, part(16, 20)?);
        let mut index = Vec::new();
        let mut at = 0;
        while at + 12 <= types.len() {
            index.push(u32::try_from(at).ok()?);
            let info = u32_at(types, at + 4)?;
            let vlen = usize::try_from(info & 0xffff).ok()?;
            at += 12
                + match (info >> 24) & 0x1f {
                    1 | 14 | 17 => 4,
                    3 => 12,
                    KIND_STRUCT | KIND_UNION | 15 | 19 => vlen * 12,
                    6 | 13 => vlen * 8,
                    2 | 7..=12 | 16 | 18 => 0,
                    _ => return None,
                };
        }
        Some(Self { types, strings, index })
    }

    fn name(&self, offset: u32) -> &'a [u8] {
        let from = usize::try_from(offset).ok().and_then(|o| self.strings.get(o..)).unwrap_or_default();
        from.split(|b| *b == 0).next().unwrap_or_default()
    }

    fn at(&self, id: u32) -> Option<(usize, u32)> {
        let at = usize::try_from(*self.index.get(usize::try_from(id).ok()?.checked_sub(1)?)?).ok()?;
        Some((at, u32_at(self.types, at + 4)?))
    }

    fn members(&self, id: u32) -> Vec<Member> {
        let Some((at, info)) = self.at(id) else { return Vec::new() };
        if !matches!((info >> 24) & 0x1f, KIND_STRUCT | KIND_UNION) {
            return Vec::new();
        }
        let bitfields = info >> 31 == 1;
        (0..usize::try_from(info & 0xffff).unwrap_or(0))
            .filter_map(|i| {
                let at = at + 12 + i * 12;
                let bit = u32_at(self.types, at + 8)?;
                Some(Member {
                    name: u32_at(self.types, at)?,
                    of: u32_at(self.types, at + 4)?,
                    bit: if bitfields { bit & 0xff_ffff } else { bit },
                })
            })
            .collect()
    }

    /// The structure called `name` that has the most members (a kernel may know several of one name).
    fn structure(&self, name: &str) -> Option<u32> {
        (1..=u32::try_from(self.index.len()).ok()?)
            .filter(|id| {
                self.at(*id).is_some_and(|(at, info)| {
                    (info >> 24) & 0x1f == KIND_STRUCT && u32_at(self.types, at).is_some_and(|n| self.name(n) == name.as_bytes())
                })
            })
            .max_by_key(|id| self.members(*id).len())
    }

    /// Byte offset of a member, looked for through anonymous structures and unions too.
    fn offset(&self, of: u32, name: &str, depth: u32) -> Option<u32> {
        for member in self.members(of) {
            let found = self.name(member.name);
            if found == name.as_bytes() {
                return Some(member.bit / 8);
            }
            if found.is_empty()
                && depth > 0
                && let Some(inner) = self.offset(member.of, name, depth - 1)
            {
                return Some(member.bit / 8 + inner);
            }
        }
        None
    }
}

fn u32_at(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(data.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// Where `struct sock` keeps its ends, from BTF data. `None` when a field is not there: then endpoints stay unknown.
pub(super) fn sock_offsets(data: &[u8]) -> Option<SockOffsets> {
    let btf = Btf::parse(data)?;
    let sock = btf.structure("sock")?;
    let common = btf.structure("sock_common")?;
    let base = btf.offset(sock, "__sk_common", 0)?;
    let field = |name| Some(base + btf.offset(common, name, 4)?);
    Some(SockOffsets {
        family: field("skc_family")?,
        local_port: field("skc_num")?,
        remote_port: field("skc_dport")?,
        local_v4: field("skc_rcv_saddr")?,
        remote_v4: field("skc_daddr")?,
        local_v6: field("skc_v6_rcv_saddr").unwrap_or(0),
        remote_v6: field("skc_v6_daddr").unwrap_or(0),
        protocol: btf.offset(sock, "sk_protocol", 4)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_kernel_names_its_socket_fields() {
        let Ok(data) = std::fs::read(VMLINUX) else {
            eprintln!("skipped: no {VMLINUX}");
            return;
        };
        let offsets = sock_offsets(&data).expect("struct sock");
        // Part of the layout that has not moved since 3.x: the lookup key of established sockets.
        assert_eq!((offsets.remote_v4, offsets.local_v4, offsets.remote_port, offsets.local_port), (0, 4, 12, 14));
        assert_eq!(offsets.family, 16);
        assert!(offsets.protocol > offsets.local_v6 && offsets.local_v6 > 0);
    }

    #[test]
    fn damaged_input_is_refused_without_panic() {
        let Ok(mut data) = std::fs::read(VMLINUX) else { return };
        data.truncate(data.len() / 2);
        let _ = sock_offsets(&data);
        assert_eq!(sock_offsets(&[]), None);
        assert_eq!(sock_offsets(&[0x9f, 0xeb, 1, 0, 24, 0, 0, 0]), None);
    }
}
