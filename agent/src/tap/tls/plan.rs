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
use tokengauge_ebpf_common::cookie::{self, Count};

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

impl Place {
    /// [`cookie::BOOLEAN`] when the place is an exported `_ex` function itself: the internal ones return what the plain ones do.
    pub const fn boolean(&self) -> u64 {
        if self.hops == 0 && !matches!(self.count, Count::Returned) { cookie::BOOLEAN } else { 0 }
    }
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
    let ways: Vec<(&Wanted<'_>, Vec<Hop>)> = wanted.iter().filter_map(|w| Some((w, way(image, image.function(w.name)?.0, w)))).collect();
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

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    const READ: Wanted<'_> = Wanted { name: "read", arguments: 3, count: Count::Returned, at_return: true };
    const READ_EX: Wanted<'_> = Wanted { name: "read_ex", arguments: 3, count: Count::At4th, at_return: true };
    const PEEK: Wanted<'_> = Wanted { name: "peek", arguments: 3, count: Count::Returned, at_return: true };

    fn show(places: &[Place]) -> String {
        let line = |p: &Place| {
            format!(
                "{} at {:#x}: {} ({}), {} hops, {:?}",
                p.functions.join("+"),
                p.address,
                p.instruction,
                p.cost.as_str(),
                p.hops,
                p.count
            )
        };
        places.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// Functions of hand-made code, one after the other from 0x1000, each at a multiple of 0x40.
    fn check(functions: &[(&str, &[u8])], wanted: &[Wanted<'_>], foreign: &[Wanted<'_>], expected: Expect) {
        let mut code = vec![0xcc; functions.len() * 0x40];
        let mut named = Vec::new();
        for (n, (name, bytes)) in functions.iter().enumerate() {
            code[n * 0x40..n * 0x40 + bytes.len()].copy_from_slice(bytes);
            named.push((*name, 0x1000 + n as u64 * 0x40, bytes.len() as u64));
        }
        let image = Image::of_code(0x1000, &code, &named);
        expected.assert_eq(&show(&plan(&image, wanted, foreign)));
    }

    /// sub $8,%rsp; call +to; add $8,%rsp; ret
    fn thin(from: u8, to: u8) -> Vec<u8> {
        let rel = (i32::from(to) - i32::from(from)) * 0x40 - 9;
        [&[0x48, 0x83, 0xec, 8, 0xe8][..], &rel.to_le_bytes(), &[0x48, 0x83, 0xc4, 8, 0xc3]].concat()
    }

    /// sub $0x18,%rsp; test %edx,%edx; js +3; mov %rsp,%rcx; movslq %edx,%rdx; call +to; ret
    fn plain(from: u8, to: u8) -> Vec<u8> {
        let rel = (i32::from(to) - i32::from(from)) * 0x40 - 19;
        [&[0x48, 0x83, 0xec, 0x18, 0x85, 0xd2, 0x78, 11, 0x48, 0x89, 0xe1, 0x48, 0x63, 0xd2, 0xe8][..], &rel.to_le_bytes(), &[0xc3]]
            .concat()
    }

    /// push %rbp; mov %rsp,%rbp; pop %rbp; ret
    const PUSH: &[u8] = &[0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3];

    #[test]
    fn a_push_at_the_entry_is_taken() {
        check(&[("read", PUSH)], &[READ], &[], expect!["read at 0x1000: push %rbp (emulated), 0 hops, Returned"]);
    }

    #[test]
    fn endbr64_is_passed_over() {
        let code = [&[0xf3, 0x0f, 0x1e, 0xfa][..], PUSH].concat();
        check(&[("read", &code)], &[READ], &[], expect!["read at 0x1004: push %rbp (emulated), 0 hops, Returned"]);
    }

    #[test]
    fn two_wrappers_meet_at_their_internal_function() {
        check(
            &[("read", &plain(0, 2)), ("read_ex", &thin(1, 2)), ("internal", PUSH)],
            &[READ, READ_EX],
            &[],
            expect!["read+read_ex at 0x1080: push %rbp (emulated), 1 hops, At4th"],
        );
    }

    #[test]
    fn an_internal_function_that_peeks_use_too_is_left_alone() {
        check(
            &[("read", &plain(0, 2)), ("peek", &plain(1, 2)), ("internal", PUSH)],
            &[READ],
            &[PEEK],
            expect!["read at 0x1000: sub %rsp (single-stepped), 0 hops, Returned"],
        );
    }

    #[test]
    fn a_moved_stack_pointer_or_a_lost_argument_or_a_loop_ends_the_search() {
        // sub $8,%rsp; push %rbp — a return probe there would replace a local variable.
        check(
            &[("read", &[0x48, 0x83, 0xec, 8, 0x55, 0xc3])],
            &[READ],
            &[],
            expect!["read at 0x1000: sub %rsp (single-stepped), 0 hops, Returned"],
        );
        // mov %rdi,%rax is harmless; xor %edi,%edi; push %rbp is not.
        check(&[("read", &[0x31, 0xff, 0x55, 0xc3])], &[READ], &[], expect!["read at 0x1000: xor %edi (single-stepped), 0 hops, Returned"]);
        // mov %rdi,%rax; push %rbp; jmp back to the push.
        check(
            &[("read", &[0x48, 0x89, 0xf8, 0x55, 0xeb, 0xfd])],
            &[READ],
            &[],
            expect!["read at 0x1000: mov %rax (single-stepped), 0 hops, Returned"],
        );
        // notrack jmp: longer than its plain form, the kernel does not emulate it.
        check(&[("read", &[0x66, 0x55, 0xc3])], &[READ], &[], expect!["read at 0x1000: push %bp (single-stepped), 0 hops, Returned"]);
    }

    #[test]
    fn a_tail_call_that_moves_the_count_pointer_is_followed() {
        // OpenSSL 3.3 and later: mov %rcx,%r8; xor %ecx,%ecx; jmp internal
        let wrapper = [&[0x49, 0x89, 0xc8, 0x31, 0xc9, 0xe9][..], &(0x40i32 - 10).to_le_bytes()].concat();
        let endbr = [&[0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x83, 0xec, 8][..], PUSH].concat();
        check(
            &[("read_ex", &wrapper), ("internal", PUSH)],
            &[READ_EX],
            &[],
            expect!["read_ex at 0x1040: push %rbp (emulated), 1 hops, At5th"],
        );
        check(
            &[("read_ex", &wrapper), ("internal", &endbr)],
            &[READ_EX],
            &[],
            expect!["read_ex at 0x1000: mov %r8 (single-stepped), 0 hops, At4th"],
        );
    }

    #[test]
    fn the_kernels_classes() {
        let class = |bytes: &[u8]| cost(&Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode());
        for (bytes, expected) in [
            (&[0x55][..], Cost::Emulated),
            (&[0x41, 0x57], Cost::Emulated),
            (&[0xe8, 0, 0, 0, 0], Cost::Emulated),
            (&[0xeb, 0], Cost::Emulated),
            (&[0x0f, 0x84, 0, 0, 0, 0], Cost::Emulated),
            (&[0x78, 0], Cost::Emulated),
            (&[0x90], Cost::Nop),
            (&[0x0f, 0x1f, 0x44, 0, 0], Cost::Nop),
            (&[0xf3, 0x0f, 0x1e, 0xfa], Cost::SingleStepped),
            (&[0xc3], Cost::SingleStepped),
            (&[0xff, 0x25, 0, 0, 0, 0], Cost::SingleStepped),
            (&[0x66, 0x90], Cost::SingleStepped),
        ] {
            assert_eq!(class(bytes), expected, "{bytes:x?}");
        }
    }

    #[test]
    fn this_machines_openssl_has_cheap_places() {
        for report in super::super::selftest::libraries() {
            println!("{} ({:?}, {} users)\n{}", report.file, report.library, report.users, show(&report.places));
            if cfg!(target_arch = "x86_64") && report.file.ends_with("/libssl.so.3") {
                // `SSL_set_quiet_shutdown` is one store long: it has no other place, and is called once per broken connection.
                let often = |p: &&Place| p.functions != ["SSL_set_quiet_shutdown"];
                assert!(report.places.iter().filter(often).all(|p| p.cost.is_cheap()), "{}: {:#?}", report.file, report.places);
            }
        }
    }
}
