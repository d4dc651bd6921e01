//! The way to the model, driven without a listener: `Proxy` against raw TCP upstreams.
