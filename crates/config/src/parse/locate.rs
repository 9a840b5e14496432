//! The lines of fields, found by reading the document once more. Done only when there is something to report.

use granit_parser::Event;

use super::path::Segment;
use super::yaml;

enum Frame {
    Map { key: Option<String> },
    Seq { next: usize },
}

/// The line, counted from one, of each path in `text`, or of the nearest enclosing value that is there.
pub(super) fn lines(text: &str, paths: &[Vec<Segment>]) -> Vec<u32> {
    // For each path: how many of its steps were found, and the line of the last of them.
    let mut best: Vec<(usize, u32)> = vec![(0, 1); paths.len()];
    let mut stack: Vec<Frame> = Vec::new();
    let mut first = true;
    for event in yaml::parser(text) {
        let Ok((event, span)) = event else { break };
        let line = span.start.line() as u32;
        let (is_node, opens) = match &event {
            Event::Scalar(..) | Event::Alias(_) => (true, None),
            Event::MappingStart(..) => (true, Some(Frame::Map { key: None })),
            Event::SequenceStart(..) => (true, Some(Frame::Seq { next: 0 })),
            Event::MappingEnd | Event::SequenceEnd => {
                stack.pop();
                finish_value(&mut stack);
                continue;
            }
            _ => (false, None),
        };
        if !is_node {
            continue;
        }
        if first {
            first = false;
            for best in &mut best {
                best.1 = line;
            }
        }
        // A scalar in key position names the field; the field's line is the key's.
        if let (Some(Frame::Map { key: key @ None }), Event::Scalar(text, ..)) =
            (stack.last_mut(), &event)
        {
            *key = Some(text.to_string());
            note(&stack, paths, &mut best, line);
            continue;
        }
        if let Some(Frame::Seq { .. }) = stack.last() {
            note(&stack, paths, &mut best, line);
        }
        match opens {
            Some(frame) => stack.push(frame),
            None => finish_value(&mut stack),
        }
    }
    best.into_iter().map(|(_, line)| line).collect()
}

fn finish_value(stack: &mut [Frame]) {
    match stack.last_mut() {
        Some(Frame::Map { key }) => *key = None,
        Some(Frame::Seq { next }) => *next += 1,
        None => {}
    }
}

/// Updates the paths that lead through the current place.
fn note(stack: &[Frame], paths: &[Vec<Segment>], best: &mut [(usize, u32)], line: u32) {
    for (path, best) in paths.iter().zip(best) {
        if stack.len() <= best.0 || stack.len() > path.len() {
            continue;
        }
        let here = stack
            .iter()
            .zip(path)
            .all(|(frame, segment)| match (frame, segment) {
                (Frame::Map { key: Some(key) }, Segment::Key(wanted)) => key == wanted,
                (Frame::Seq { next }, Segment::Index(wanted)) => next == wanted,
                _ => false,
            });
        if here {
            *best = (stack.len(), line);
        }
    }
}
