//! What is ours: indicators that are measured on each request, the short form, alert tables, presets.

pub mod alerting;
pub mod limit;
pub mod presets;
pub mod select;
pub mod short;
pub mod sli;
pub mod tables;
