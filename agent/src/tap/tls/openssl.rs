//! OpenSSL 1.1 and 3, as a shared library under whatever file name, or inside an executable that kept the symbols.
//!
//! `SSL_read` and `SSL_read_ex` (and the two writes) call one internal function each; that is where the planner usually puts the
//! probes. `SSL_peek` has an internal function of its own, which must not be caught: peeked bytes are read again. `SSL_new` tells
//! that a connection is seen from its first byte, `SSL_free` ends it, `SSL_shutdown` says that the process has no more to send.
//!
//! Not here: BoringSSL's own extras, GnuTLS, Go, rustls. An executable with BoringSSL symbols is recognised because it has the
//! same functions with the same meaning.

use tokengauge_ebpf_common::cookie::Count;
use tokengauge_ebpf_common::dir;

use super::elf::Image;
use super::plan::{self, Wanted};
use super::{Functions, Site, TlsLibrary};
use crate::tap::tls::kernel::Role;

/// OpenSSL.
pub(super) struct OpenSsl;

const REQUIRED: &[&str] = &["SSL_read", "SSL_write", "SSL_free"];
const INTERESTING: &[&str] = &[
    "SSL_read",
    "SSL_read_ex",
    "SSL_write",
    "SSL_write_ex",
    "SSL_peek",
    "SSL_peek_ex",
    "SSL_free",
    "SSL_shutdown",
    "SSL_set_quiet_shutdown",
    "SSL_new",
];

const fn moves(name: &str, count: Count) -> Wanted<'_> {
    Wanted { name, arguments: 3, count, at_return: true }
}

const READS: &[Wanted<'_>] = &[moves("SSL_read", Count::Returned), moves("SSL_read_ex", Count::At4th)];
const WRITES: &[Wanted<'_>] = &[moves("SSL_write", Count::Returned), moves("SSL_write_ex", Count::At4th)];
const PEEKS: &[Wanted<'_>] = &[moves("SSL_peek", Count::Returned), moves("SSL_peek_ex", Count::At4th)];

impl TlsLibrary for OpenSsl {
    fn name(&self) -> &'static str {
        "openssl"
    }

    fn is_named(&self, file: &str) -> bool {
        // libssl.so.3, and libssl-<hash>.so.3 of a Python wheel; libssl3.so is NSS.
        file.starts_with("libssl.so") || (file.starts_with("libssl-") && file.contains(".so"))
    }

    fn required(&self) -> &'static [&'static str] {
        REQUIRED
    }

    fn interesting(&self) -> &'static [&'static str] {
        INTERESTING
    }

    fn sites(&self, image: &Image, functions: Functions) -> Vec<Site> {
        let place = |wanted: &[Wanted<'_>], foreign: &[Wanted<'_>]| match functions {
            Functions::Planned => plan::plan(image, wanted, foreign),
            Functions::Symbols => plan::symbols(image, wanted),
        };
        let mut sites = Vec::new();
        for (wanted, foreign, dir) in [(READS, WRITES, dir::READ), (WRITES, READS, dir::WRITE)] {
            let foreign: Vec<Wanted<'_>> = PEEKS.iter().chain(foreign).copied().collect();
            for place in place(wanted, &foreign) {
                sites.push(Site { roles: &[Role::Leave, Role::Enter], dir, place });
            }
        }
        let single = |name, arguments, at_return| [Wanted { name, arguments, count: Count::Returned, at_return }];
        for (wanted, roles) in [
            (single("SSL_free", 1, false), &[Role::Free][..]),
            (single("SSL_shutdown", 1, false), &[Role::Shutdown][..]),
            (single("SSL_set_quiet_shutdown", 2, false), &[Role::Quiet][..]),
            // Last: only when all else is in place is a connection seen from its first byte.
            (single("SSL_new", 0, true), &[Role::New][..]),
        ] {
            sites.extend(place(&wanted, &[]).into_iter().map(|place| Site { roles, dir: dir::WRITE, place }));
        }
        sites
    }
}
