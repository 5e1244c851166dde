//! What reading a capture costs at least: `straight_floor FILE`. The file is mapped; of each packet (Ethernet, IPv4, TCP, plain
//! pcap) whose payload is a chunk with a server-sent event, the `"content"` field is looked for and its bytes are counted. No connection
//! is followed, nothing is put in order, nothing is measured. CPU seconds come from `time`.
#![allow(unsafe_code, reason = "mmap(2) has no safe form")]

use std::os::fd::AsRawFd as _;

fn word(bytes: &[u8], at: usize) -> usize {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, |b| u32::from_le_bytes(b) as usize)
}

fn main() -> std::io::Result<()> {
    let path = std::env::args().nth(1).unwrap_or_default();
    let file = std::fs::File::open(path)?;
    let len = usize::try_from(file.metadata()?.len()).unwrap_or(0);
    // SAFETY: a new read-only mapping, looked at for failure, alive until the process ends
    let start = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
    if start == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the mapping just made, `len` bytes long
    let all = unsafe { std::slice::from_raw_parts(start.cast::<u8>().cast_const(), len) };
    let (mut at, mut packets, mut events, mut text) = (24, 0u64, 0u64, 0u64);
    let content = memchr::memmem::Finder::new("\"content\"");
    while at + 16 <= len {
        let captured = word(all, at + 8);
        let Some(frame) = all.get(at + 16..at + 16 + captured) else { break };
        at += 16 + captured;
        packets += 1;
        let Some(header) = frame.get(46).map(|b| usize::from(b >> 4) * 4) else { continue };
        let Some(mut rest) = frame.get(34 + header..) else { continue };
        // chunks: a size line, so many bytes, a line end
        while let Some(line) = memchr::memchr(b'\n', rest.get(..12.min(rest.len())).unwrap_or_default()) {
            let digits = std::str::from_utf8(&rest[..line.saturating_sub(1)]).unwrap_or("");
            let Ok(size) = usize::from_str_radix(digits, 16) else { break };
            let Some(data) = rest.get(line + 1..line + 1 + size).filter(|data| data.starts_with(b"data:")) else { break };
            events += 1;
            if let Some(found) = content.find(data) {
                let value = data.get(found + 10..).unwrap_or_default();
                let begin = memchr::memchr(b'"', value).map_or(0, |n| n + 1);
                text += memchr::memchr(b'"', value.get(begin..).unwrap_or_default()).unwrap_or(0) as u64;
            }
            rest = rest.get(line + 3 + size..).unwrap_or_default();
        }
    }
    println!("{packets} packets, {events} events, {text} bytes of text");
    Ok(())
}
