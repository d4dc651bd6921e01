//! Configuration changed at run time: settings that take effect, settings that need a restart, and
//! no lost request.

mod changes;
mod load;
