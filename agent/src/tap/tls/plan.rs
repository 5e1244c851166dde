//! Where a probe is cheap: the attach planner.
//!
//! On x86-64 a uprobe is an `int3`. The kernel *emulates* the replaced instruction when that is a `push`, a relative jump or
//! call, a conditional jump or a nop; anything else is *single-stepped*, a second trap that a hypervisor usually intercepts:
//! about 20 µs instead of 1 on a virtual machine. Compilers rarely begin a function with an emulated instruction, but there is
//! almost always one close by. The planner looks for it:
//!
//! 1. It walks from the function's entry in a straight line while the arguments are still in their registers, the stack pointer
//!    has not moved and nothing jumps back. The first emulated instruction on that line is the place for entry and return probe
//!    alike (one breakpoint serves both). The return probe is why the stack pointer matters: the kernel replaces the word it
//!    points to, so a return probe where it has moved corrupts the program silently. It is proven here or not done.
//! 2. A *thin* function, which passes its arguments on by `call` or `jmp`, is followed to the internal function (three deep).
//!    `SSL_read` and `SSL_read_ex` share one: one pair of probes serves both, and its prologue is usually a `push`. How the
//!    count comes back is learnt on the way: which register carries the pointer that the wrapper made or passed on.
//! 3. An internal function that a function *not* to be watched also reaches (`SSL_peek`) is not used.
//!
//! No plan means the plain symbol, which is always right and only dear. On other architectures that is all there is.
//! The planner only reads code; that a plan was right is seen in the kernel, at every record (`ssl_leave`, `SENSELESS`).

use std::collections::BTreeSet;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, OpKind, Register};
use tokengauge_ebpf_common::cookie::Count;

use super::elf::Image;

/// What a hit costs, by the kind of the probed instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// The kernel emulates it: one trap.
    Emulated,
    /// A nop: as cheap; Linux 6.18 turns the five-byte one into a call, which is cheaper still.
    Nop,
    /// Single-stepped: two traps.
    SingleStepped,
    /// Not an architecture that the planner reads.
    Unknown,
}

impl Cost {
    /// Its name in tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Emulated => "emulated",
            Self::Nop => "nop",
            Self::SingleStepped => "single-stepped",
            Self::Unknown => "unknown",
        }
    }

    /// Whether one trap is enough.
    pub const fn is_cheap(self) -> bool {
        matches!(self, Self::Emulated | Self::Nop)
    }
}

/// Where to probe, and why it may be done there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The functions that it serves, as exported.
    pub functions: Vec<String>,
    /// Virtual address in the file.
    pub address: u64,
    /// Offset in the file.
    pub file_offset: u64,
    /// Distance from the entry of the function that it stands in.
    pub into: u64,
    /// Functions passed on the way from the exported one.
    pub hops: usize,
    /// The instruction.
    pub instruction: String,
    /// What a hit costs.
    pub cost: Cost,
    /// How the call tells its count.
    pub count: Count,
}

/// A function to find a place for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Its exported name.
    pub name: &'a str,
    /// How many arguments must be intact at the place.
    pub arguments: usize,
    /// How it tells its count.
    pub count: Count,
    /// Whether a return probe stands there too.
    pub at_return: bool,
}

/// What a register holds, as far as it matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Value {
    Argument(usize),
    /// A pointer into the caller's own frame: where a plain function lets the internal one put its count.
    Frame,
    Other,
}

const ARGUMENTS: [Register; 5] = [Register::RDI, Register::RSI, Register::RDX, Register::RCX, Register::R8];

/// One function on the way from an exported one to where its work is done.
#[derive(Clone, Debug)]
struct Hop {
    entry: u64,
    count: Count,
    cheap: Option<(u64, Instruction)>,
}

const fn count_register(count: Count) -> Option<usize> {
    match count {
        Count::Returned => None,
        Count::At4th => Some(3),
        Count::At5th => Some(4),
    }
}

/// Chooses places for functions that do the same work (`SSL_read`, `SSL_read_ex`): one for all where they meet, else one each.
/// `foreign` are functions that must not reach a chosen internal function. Functions that the image lacks are left out.
pub(super) fn plan(image: &Image, wanted: &[Wanted<'_>], foreign: &[Wanted<'_>]) -> Vec<Place> {
    let ways: Vec<(&Wanted<'_>, Vec<Hop>)> =
        wanted.iter().filter_map(|w| Some((w, way(image, image.function(w.name)?.0, w)))).collect();
    let avoid: BTreeSet<u64> =
        foreign.iter().filter_map(|w| Some(way(image, image.function(w.name)?.0, w))).flatten().map(|hop| hop.entry).collect();
    let usable = |hop: &Hop, depth: usize| hop.cheap.is_some() && (depth == 0 || !avoid.contains(&hop.entry));

    if let [(first, way), others @ ..] = ways.as_slice()
        && !others.is_empty()
    {
        let shared = way.iter().enumerate().find(|(depth, hop)| {
            usable(hop, *depth) && others.iter().all(|(_, way)| way.iter().any(|h| h.entry == hop.entry && h.count == hop.count))
        });
        if let Some((depth, hop)) = shared {
            let names = ways.iter().map(|(w, _)| w.name.to_owned()).collect();
            return vec![place(image, names, hop, depth, first)];
        }
    }
    let mut places: Vec<Place> = Vec::new();
    for (wanted, way) in &ways {
        let chosen = way.iter().enumerate().find(|(depth, hop)| usable(hop, *depth)).or_else(|| way.iter().enumerate().next());
        let Some((depth, hop)) = chosen else { continue };
        let found = place(image, vec![wanted.name.to_owned()], hop, depth, wanted);
        // Aliases, or two wrappers of one internal function that others bypass: never two probes at one place.
        match places.iter_mut().find(|p| p.address == found.address) {
            Some(same) => same.functions.extend(found.functions),
            None => places.push(found),
        }
    }
    places
}

/// The plain symbols: what a plan falls back to.
pub(super) fn symbols(image: &Image, wanted: &[Wanted<'_>]) -> Vec<Place> {
    let mut places: Vec<Place> = Vec::new();
    for w in wanted {
        let Some((entry, _)) = image.function(w.name) else { continue };
        let found = place(image, vec![w.name.to_owned()], &Hop { entry, count: w.count, cheap: None }, 0, w);
        match places.iter_mut().find(|p| p.address == found.address) {
            Some(same) => same.functions.extend(found.functions),
            None => places.push(found),
        }
    }
    places
}

fn place(image: &Image, functions: Vec<String>, hop: &Hop, hops: usize, _wanted: &Wanted<'_>) -> Place {
    let (address, instruction) = match hop.cheap {
        Some((address, instruction)) => (address, Some(instruction)),
        None => (hop.entry, image.is_x86_64().then(|| decode(image, hop.entry, 16).next()).flatten()),
    };
    let text = instruction.as_ref().map(name).unwrap_or_default();
    Place {
        functions,
        address,
        file_offset: image.file_offset(address).unwrap_or(address),
        into: address - hop.entry,
        hops,
        instruction: text,
        cost: instruction.as_ref().map_or(Cost::Unknown, cost),
        count: hop.count,
    }
}

/// The instruction's mnemonic, with its first operand where that is a register.
fn name(instruction: &Instruction) -> String {
    let mut text = format!("{:?}", instruction.mnemonic()).to_lowercase();
    if instruction.op_count() > 0 && instruction.op0_kind() == OpKind::Register {
        text.push_str(&format!(" %{:?}", instruction.op0_register()).to_lowercase());
    }
    text
}

fn decode(image: &Image, address: u64, len: u64) -> impl Iterator<Item = Instruction> {
    let code = image.code(address, len).unwrap_or_default();
    let mut decoder = Decoder::with_ip(64, &code, address, DecoderOptions::NONE);
    let mut all = Vec::new();
    while decoder.can_decode() {
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            break;
        }
        all.push(instruction);
    }
    all.into_iter()
}

/// What the kernel does at a breakpoint on this instruction (arch/x86/kernel/uprobes.c, `branch_setup_xol_ops` and
/// `push_setup_xol_ops`).
fn cost(instruction: &Instruction) -> Cost {
    match instruction.code() {
        Code::Push_r64 if instruction.len() <= 2 => Cost::Emulated,
        Code::Jmp_rel8_64 | Code::Jmp_rel32_64 | Code::Call_rel32_64 if !prefixed(instruction) => Cost::Emulated,
        Code::Nopd if instruction.len() == 1 => Cost::Nop,
        Code::Nop_rm32 if instruction.len() == 5 => Cost::Nop,
        _ if instruction.is_jcc_short_or_near() && !prefixed(instruction) => Cost::Emulated,
        _ => Cost::SingleStepped,
    }
}

/// Whether a branch carries prefixes (`notrack`, `bnd`, operand size): then it is longer than its plain form.
fn prefixed(instruction: &Instruction) -> bool {
    let plain = match instruction.code() {
        Code::Jmp_rel8_64 => 2,
        Code::Jmp_rel32_64 | Code::Call_rel32_64 => 5,
        _ if instruction.is_jcc_short() => 2,
        _ => 6,
    };
    instruction.len() != plain
}

/// The functions on the way from `entry` to where the work is done, each with its cheap place if it has one.
fn way(image: &Image, entry: u64, wanted: &Wanted<'_>) -> Vec<Hop> {
    let mut hops = vec![];
    let mut next = Some((entry, wanted.count));
    while let Some((entry, count)) = next {
        if !image.is_x86_64() {
            hops.push(Hop { entry, count, cheap: None });
            break;
        }
        let (cheap, onward) = walk(image, entry, count, wanted);
        hops.push(Hop { entry, count, cheap });
        next = onward.filter(|(to, _)| hops.len() < 4 && hops.iter().all(|hop| hop.entry != *to));
    }
    hops
}

type Walked = (Option<(u64, Instruction)>, Option<(u64, Count)>);

/// Walks one function in a straight line: its first cheap place, and the function that it passes its arguments to.
fn walk(image: &Image, entry: u64, count: Count, wanted: &Wanted<'_>) -> Walked {
    let size = image.size_of_function(entry);
    let all: Vec<Instruction> = decode(image, entry, size).collect();
    let end = entry + size;
    // Targets of jumps from within: a place that is jumped to may be hit more than once, or with other registers.
    let targets: BTreeSet<u64> = all
        .iter()
        .filter(|i| matches!(i.flow_control(), FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch))
        .map(Instruction::near_branch_target)
        .filter(|t| (entry..end).contains(t))
        .collect();

    let mut held = [Value::Other; 16];
    let arguments = if wanted.arguments > 2 { 3 } else { wanted.arguments };
    for (n, register) in ARGUMENTS.iter().enumerate().take(arguments) {
        held[register.number()] = Value::Argument(n);
    }
    if let Some(n) = count_register(count) {
        held[ARGUMENTS[n].number()] = Value::Argument(3);
    }
    let mut info = InstructionInfoFactory::new();
    let mut stack_moved = false;
    let mut unconditional = true;
    let mut cheap = None;
    for instruction in all.iter().take(40) {
        let at = instruction.ip();
        if targets.contains(&at) {
            break;
        }
        let intact = ARGUMENTS.iter().take(arguments).enumerate().all(|(n, r)| held[r.number()] == Value::Argument(n))
            && count_register(count).is_none_or(|n| held[ARGUMENTS[n].number()] == Value::Argument(3));
        if cheap.is_none() && intact && unconditional && !(stack_moved && wanted.at_return) && cost(instruction).is_cheap() {
            cheap = Some((at, *instruction));
        }
        match instruction.flow_control() {
            FlowControl::Next => {}
            FlowControl::ConditionalBranch => {
                unconditional = false;
                // A check for a negative length leads to an error; any other fork might lead to work that is not seen.
                if !matches!(instruction.code(), Code::Js_rel8_64 | Code::Js_rel32_64 | Code::Jl_rel8_64 | Code::Jl_rel32_64) {
                    return (cheap, None);
                }
            }
            FlowControl::Call | FlowControl::UnconditionalBranch => {
                let to = instruction.near_branch_target();
                let leaves = instruction.flow_control() == FlowControl::Call || !(entry..end).contains(&to);
                let inside = image.is_code(to) && !image.is_plt(to);
                let passed = ARGUMENTS.iter().take(3).enumerate().all(|(n, r)| held[r.number()] == Value::Argument(n));
                let onward = (leaves && inside && passed && wanted.arguments > 2).then(|| onward(&held, count)).flatten();
                return (cheap, onward.map(|count| (to, count)));
            }
            _ => break,
        }
        let copied = copied(instruction, &held);
        for used in info.info(instruction).used_registers() {
            if matches!(used.access(), OpAccess::Write | OpAccess::ReadWrite | OpAccess::CondWrite | OpAccess::ReadCondWrite) {
                let full = used.register().full_register();
                if full == Register::RSP {
                    stack_moved = true;
                } else if full.is_gpr64() && !extends(instruction, full) {
                    held[full.number()] = Value::Other;
                }
            }
        }
        if let Some((to, value)) = copied {
            held[to.number()] = value;
        }
    }
    (cheap, None)
}

/// How the internal function will tell its count: by the pointer that the wrapper got, or made.
fn onward(held: &[Value; 16], count: Count) -> Option<Count> {
    let pointer = if count == Count::Returned { Value::Frame } else { Value::Argument(3) };
    match (held[Register::RCX.number()] == pointer, held[Register::R8.number()] == pointer) {
        (true, false) => Some(Count::At4th),
        (false, true) => Some(Count::At5th),
        _ => None,
    }
}

/// `movslq %edx,%rdx`, `mov %edx,%edx`: the argument stays what it is.
fn extends(instruction: &Instruction, register: Register) -> bool {
    instruction.op_count() == 2
        && matches!(instruction.code(), Code::Movsxd_r64_rm32 | Code::Mov_r32_rm32 | Code::Mov_rm32_r32)
        && instruction.op0_kind() == OpKind::Register
        && instruction.op1_kind() == OpKind::Register
        && instruction.op0_register().full_register() == register
        && instruction.op1_register().full_register() == register
}

/// A move between registers, or the address of a stack slot.
fn copied(instruction: &Instruction, held: &[Value; 16]) -> Option<(Register, Value)> {
    let to = (instruction.op_count() == 2 && instruction.op0_kind() == OpKind::Register).then(|| instruction.op0_register())?;
    if !to.is_gpr64() {
        return None;
    }
    match instruction.code() {
        Code::Mov_r64_rm64 | Code::Mov_rm64_r64 if instruction.op1_kind() == OpKind::Register => {
            let from = instruction.op1_register();
            Some((to, if from == Register::RSP { Value::Frame } else { held[from.number()] }))
        }
        Code::Lea_r64_m if instruction.memory_base() == Register::RSP && instruction.memory_index() == Register::None => {
            Some((to, Value::Frame))
        }
        _ => None,
    }
}
