//! Attached files: find out what a file is, put the probes in, take a wrong plan back, detach what nobody maps.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use tokengauge_ebpf_common::{MAX_SITES, cookie};

use super::discover::{Candidate, FileId};
use super::elf::Image;
use super::kernel::{Attachment, Kernel, Role};
use super::{Functions, LIBRARIES, Site, TlsLibrary};

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
#[derive(Default)]
pub(super) struct Attachments {
    files: FxHashMap<FileId, Attached>,
    next_site: u32,
    /// Attempts by outcome.
    pub outcomes: BTreeMap<Outcome, u64>,
    /// Plans that were taken back.
    pub fallbacks: u64,
}

/// A file that nobody maps is let go after so many scans.
const UNUSED_SCANS: u32 = 60;

/// Looks into a file.
pub(super) fn recognise(candidate: &Candidate) -> std::io::Result<Option<(&'static dyn TlsLibrary, Image)>> {
    for library in LIBRARIES {
        if let Some(image) = Image::open(&candidate.open, library.required(), library.interesting())? {
            return Ok(Some((*library, image)));
        }
    }
    Ok(None)
}

impl Attachments {
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
        let (library, image) = match recognise(&candidate) {
            Err(_) => return Ok(Outcome::Unreadable),
            Ok(None) => {
                let name = candidate.shown.rsplit('/').next().unwrap_or_default();
                let named = LIBRARIES.iter().any(|l| l.is_named(name));
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
                .map(|(number, site)| (site.place.file_offset, cookie::new(*number, site.dir, site.place.count)))
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
}
