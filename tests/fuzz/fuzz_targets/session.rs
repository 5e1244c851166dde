//! A connection's requests and responses: each exchange ends once, in order.
#![no_main]
use libfuzzer_sys::fuzz_target;
use tokengauge_core::http::event::HttpEvent;
use tokengauge_core::http::h1::session::Session;
use tokengauge_core::stream::{Direction, StreamEvent};

fuzz_target!(|data: &[u8]| {
    let mut session = Session::new(Direction::Forward, [true; 2]);
    let (mut begun, mut over) = (0, 0);
    let mut see = |event: HttpEvent<'_>| match event {
        HttpEvent::Request { id, .. } => {
            assert_eq!(id, begun);
            begun += 1;
        }
        HttpEvent::Over { id, .. } | HttpEvent::Upgraded { id, .. } => {
            assert_eq!(id, over);
            over += 1;
        }
        HttpEvent::ResponseBody { id, .. } | HttpEvent::Response { id, .. } => assert_eq!(id, over),
        _ => assert!(over <= begun),
    };
    tokengauge_fuzz::script(data, |event| match event {
        StreamEvent::Data { dir, at, bytes, .. } => {
            session.data(dir, at, bytes, &mut see);
        }
        StreamEvent::Gap { dir, len, .. } => session.gap(dir, len, &mut see),
        StreamEvent::Close { end, .. } => session.close(end, &mut see),
        _ => {}
    });
});
