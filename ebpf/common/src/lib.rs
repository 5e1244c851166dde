//! The `#[repr(C)]` ABI between the kernel programs and the agent.
#![no_std]
