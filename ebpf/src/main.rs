//! tokengauge's kernel programs: one file per kind of place they stand at.
//!
//! They copy plaintext at TLS calls and events at the hook's tap symbol, count what they could not copy, and parse nothing (invariant 2).
#![no_std]
#![no_main]

mod empty;
mod hook;
mod maps;
mod openssl;
mod ring;
mod socket;

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // Unreachable: the verifier would refuse it. It has to exist for the compiler.
    loop {}
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "license")]
static LICENSE: [u8; 4] = *b"GPL\0";
