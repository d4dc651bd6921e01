//! The configuration changed while weir serves: what holds from then on, what does not, and that no
//! request is lost.

mod changes;
mod load;
