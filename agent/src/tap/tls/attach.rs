//! Attached files: find out what a file is, put the probes in, take a wrong plan back, detach what nobody maps.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use tokengauge_ebpf_common::{MAX_SITES, cookie};

use super::discover::{Candidate, FileId};
use super::elf::Image;
use super::kernel::{Attachment, Kernel, Role};
use super::{Functions, Site, TlsLibrary};

/// How an attempt ended; the value of the metric's `result`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Outcome {
    /// Probes are in place.
    Attached,
    /// A TLS library by name, without the functions.
    NoSymbols,
    /// Not a TLS library: an ordinary executable.
    NotTls,
    /// The kernel refused.
    Refused,
    /// The file was gone or unreadable before it could be looked at.
    Unreadable,
}

impl Outcome {
    /// Its name in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Attached => "attached",
            Self::NoSymbols => "no_symbols",
            Self::NotTls => "not_tls",
            Self::Refused => "refused",
            Self::Unreadable => "unreadable",
        }
    }
}

/// One file with probes in it.
pub(super) struct Attached {
    pub shown: String,
    pub sites: Vec<(u32, Site)>,
    functions: Functions,
    candidate: Candidate,
    /// Detach when empty of users for so many scans.
    unused: u32,
    _attachments: Vec<Attachment>,
}

/// All of them.
pub(super) struct Attachments {
    files: FxHashMap<FileId, Attached>,
    next_site: u32,
    /// What files are looked at for.
    libraries: &'static [&'static dyn TlsLibrary],
    /// Attempts by outcome.
    pub outcomes: BTreeMap<Outcome, u64>,
    /// Plans that were taken back.
    pub fallbacks: u64,
}

/// A file that nobody maps is let go after so many scans.
const UNUSED_SCANS: u32 = 60;

/// Looks into a file.
pub(super) fn recognise(
    candidate: &Candidate,
    libraries: &[&'static dyn TlsLibrary],
) -> std::io::Result<Option<(&'static dyn TlsLibrary, Image)>> {
    for library in libraries {
        if let Some(image) = Image::open(&candidate.open, library.required(), library.interesting())? {
            return Ok(Some((*library, image)));
        }
    }
    Ok(None)
}

impl Attachments {
    /// None yet.
    pub(super) fn new(libraries: &'static [&'static dyn TlsLibrary]) -> Self {
        Self { files: FxHashMap::default(), next_site: 0, libraries, outcomes: BTreeMap::new(), fallbacks: 0 }
    }

    /// Attaches to a file if it is a TLS library. Says what came of it, and the kernel's words when it refused.
    pub(super) fn add(&mut self, kernel: &mut Kernel, candidate: Candidate, functions: Functions) -> (Outcome, Option<String>) {
        if self.files.contains_key(&candidate.id) {
            return (Outcome::Attached, None);
        }
        let (outcome, why) = match self.try_add(kernel, candidate, functions) {
            Ok(outcome) => (outcome, None),
            Err(why) => (Outcome::Refused, Some(why)),
        };
        *self.outcomes.entry(outcome).or_default() += 1;
        (outcome, why)
    }

    fn try_add(&mut self, kernel: &mut Kernel, candidate: Candidate, functions: Functions) -> Result<Outcome, String> {
        let (library, image) = match recognise(&candidate, self.libraries) {
            Err(_) => return Ok(Outcome::Unreadable),
            Ok(None) => {
                let name = candidate.shown.rsplit('/').next().unwrap_or_default();
                let named = self.libraries.iter().any(|l| l.is_named(name));
                return Ok(if named { Outcome::NoSymbols } else { Outcome::NotTls });
            }
            Ok(Some(found)) => found,
        };
        let sites: Vec<(u32, Site)> = library
            .sites(&image, functions)
            .into_iter()
            .map(|site| {
                self.next_site = (self.next_site + 1) % MAX_SITES;
                (self.next_site, site)
            })
            .collect();
        let mut attachments = Vec::new();
        // One call for each role, in the order of the sites: returns before entries, so that no entry goes without its return.
        let mut roles: Vec<Role> = Vec::new();
        for role in sites.iter().flat_map(|(_, site)| site.roles) {
            if !roles.contains(role) {
                roles.push(*role);
            }
        }
        for role in roles {
            let places: Vec<(u64, u64)> = sites
                .iter()
                .filter(|(_, site)| site.roles.contains(&role))
                .map(|(number, site)| (site.place.file_offset, cookie::new(*number, site.dir, site.place.count) | site.place.boolean()))
                .collect();
            attachments.push(kernel.attach(role, &candidate.open, &places).map_err(|e| e.to_string())?);
        }
        let attached = Attached { shown: candidate.shown.clone(), sites, functions, unused: 0, _attachments: attachments, candidate };
        self.files.insert(attached.candidate.id, attached);
        Ok(Outcome::Attached)
    }

    /// Takes back plans whose results made no sense: the plain symbols take their place.
    pub(super) fn distrust(&mut self, kernel: &mut Kernel) -> Vec<String> {
        let wrong: Vec<FileId> = self
            .files
            .iter()
            .filter(|(_, f)| f.functions == Functions::Planned && f.sites.iter().any(|(number, _)| kernel.senseless(*number) > 0))
            .map(|(id, _)| *id)
            .collect();
        let mut told = Vec::new();
        for id in wrong {
            let Some(file) = self.files.remove(&id) else { continue };
            let (shown, candidate) = (file.shown.clone(), file.candidate.clone());
            drop(file);
            self.fallbacks += 1;
            let again = self.try_add(kernel, candidate, Functions::Symbols);
            told.push(format!("{shown}: the planned places gave senseless results; fell back to the symbols: {again:?}"));
        }
        told
    }

    /// Lets go of files that nobody has mapped for a while. Returns those.
    pub(super) fn detach_unused(&mut self, mapped: &BTreeMap<FileId, usize>) -> Vec<FileId> {
        let mut gone = Vec::new();
        self.files.retain(|id, file| {
            // The machine's own libraries stay: they are attached before anyone maps them, on purpose.
            file.unused = if file.candidate.pid.is_none() || mapped.contains_key(id) { 0 } else { file.unused + 1 };
            let stays = file.unused < UNUSED_SCANS;
            if !stays {
                gone.push(*id);
            }
            stays
        });
        gone
    }

    /// Takes all probes out; what was counted stays.
    pub(super) fn detach_all(&mut self) {
        self.files.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use tokengauge_ebpf_common::{Config, cookie::Count};

    use super::super::discover::Processes;
    use super::super::kernel::{LoadOptions, Programs};
    use super::super::openssl::OpenSsl;
    use super::*;

    /// OpenSSL, with a plan that is wrong about where the count stands.
    struct Lying;
    impl TlsLibrary for Lying {
        fn name(&self) -> &'static str {
            "lying"
        }
        fn is_named(&self, file: &str) -> bool {
            OpenSsl.is_named(file)
        }
        fn required(&self) -> &'static [&'static str] {
            OpenSsl.required()
        }
        fn interesting(&self) -> &'static [&'static str] {
            OpenSsl.interesting()
        }
        fn sites(&self, image: &Image, functions: Functions) -> Vec<Site> {
            let mut sites = OpenSsl.sites(image, functions);
            if functions == Functions::Planned {
                sites.iter_mut().for_each(|site| site.place.count = Count::At5th);
            }
            sites
        }
    }

    #[test]
    fn a_wrong_plan_is_noticed_and_replaced_by_the_symbols() {
        let options = LoadOptions { programs: Programs::Tls, ring_bytes: 1 << 20, mechanism: None, config: Config::default() };
        let (mut kernel, _ring) = match Kernel::load(&options) {
            Ok(loaded) => loaded,
            Err(error) => {
                assert!(std::env::var_os("TOKENGAUGE_REQUIRE_BPF").is_none(), "{error}");
                eprintln!("skipped: {error}");
                return;
            }
        };
        let Some(library) = Processes::default().system_libraries(|name| name == "libssl.so.3").pop() else {
            eprintln!("skipped: no libssl.so.3 on this machine");
            return;
        };
        let id = library.id;
        let mut attachments = Attachments::new(&[&Lying]);
        assert_eq!(attachments.add(&mut kernel, library, Functions::Planned).0, Outcome::Attached);
        assert!(attachments.distrust(&mut kernel).is_empty(), "nothing was called yet");
        // A handshake over memory and a write and a read in one process.
        let code = "import ssl,sys\n\
                    c=ssl.create_default_context();c.check_hostname=False;c.verify_mode=ssl.CERT_NONE;c.set_ciphers('aNULL:@SECLEVEL=0');c.maximum_version=ssl.TLSVersion.TLSv1_2\n\
                    s=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER);s.set_ciphers('aNULL:@SECLEVEL=0');s.maximum_version=ssl.TLSVersion.TLSv1_2\n\
                    a,b=ssl.MemoryBIO(),ssl.MemoryBIO()\n\
                    k=c.wrap_bio(a,b);v=s.wrap_bio(b,a,server_side=True)\n\
                    for i in range(6):\n\
                    \tfor o in (k,v):\n\
                    \t\ttry: o.do_handshake()\n\
                    \t\texcept ssl.SSLWantReadError: pass\n\
                    k.write(b'hello');assert v.read(100)==b'hello'\n";
        let run = || Command::new("python3").args(["-c", code]).status().expect("python3").success();
        assert!(run(), "the program must not suffer from a wrong plan");
        let told = attachments.distrust(&mut kernel);
        assert_eq!((told.len(), attachments.fallbacks), (1, 1), "{told:?}");
        assert!(attachments.files.get(&id).is_some_and(|f| f.functions == Functions::Symbols));
        let before = kernel.counters();
        assert!(run());
        let after = kernel.counters();
        assert_eq!(after.senseless, before.senseless, "the symbols make sense");
        assert!(after.records >= before.records + 2);
        assert!(attachments.distrust(&mut kernel).is_empty());
    }
}
