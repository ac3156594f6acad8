//! The picture of a replay: allocation over load, as an SVG that any browser shows.
//!
//! `holdfast replay --svg` writes it. The one rule: it needs nothing beside itself: no script, no font, no other file.

use std::fmt::Write;

/// One line of the picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// What it shows.
    pub name: String,
    /// Load and allocation, in hundredths of a per cent.
    pub points: Vec<(u32, u32)>,
}

const WIDTH: u32 = 760;
const HEIGHT: u32 = 520;
const LEFT: u32 = 60;
const TOP: u32 = 40;
const PLOT_WIDTH: u32 = 660;
const PLOT_HEIGHT: u32 = 420;
/// Ends of the axes, in hundredths of a per cent.
const LOAD_END: u32 = 13_000;
const ALLOCATED_END: u32 = 10_000;
/// Colours that are told apart also by those who see few.
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
/// Points drawn of one line; more cannot be seen.
const POINTS_MAX: usize = 1_000;

/// Draws lines over the load.
#[must_use]
pub fn draw(title: &str, lines: &[Line]) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"15\">{}</text>\n",
        escaped(title)
    );
    axes(&mut svg);
    for (number, line) in lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let step = line.points.len().div_ceil(POINTS_MAX).max(1);
        let last = line.points.last().into_iter();
        let points: Vec<String> = line
            .points
            .iter()
            .step_by(step)
            .chain(last)
            .map(|point| at(*point))
            .collect();
        // Writing to a string does not fail.
        let _ = writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>",
            points.join(" ")
        );
        let y = TOP + PLOT_HEIGHT - 12 - 16 * u32::try_from(number).unwrap_or(0);
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{y}\" text-anchor=\"end\" fill=\"{colour}\">{}</text>",
            LEFT + PLOT_WIDTH - 8,
            escaped(&line.name)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn axes(svg: &mut String) {
    for percent in (0..=130).step_by(10) {
        let (x, y) = (column(percent * 100), TOP + PLOT_HEIGHT);
        let _ = writeln!(
            svg,
            "<path d=\"M{x} {TOP}V{y}\" stroke=\"#ddd\"/><text x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{percent}</text>",
            y + 16
        );
    }
    for percent in (0..=100).step_by(10) {
        let y = row(percent * 100);
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {y}H{}\" stroke=\"#ddd\"/><text x=\"{}\" y=\"{}\" text-anchor=\"end\">{percent}</text>",
            LEFT + PLOT_WIDTH,
            LEFT - 6,
            y + 4
        );
    }
    let (x, y) = (LEFT + PLOT_WIDTH / 2, TOP + PLOT_HEIGHT + 38);
    let _ = writeln!(
        svg,
        "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">arrived, % of all devices</text>"
    );
    let middle = TOP + PLOT_HEIGHT / 2;
    let _ = writeln!(
        svg,
        "<text x=\"16\" y=\"{middle}\" text-anchor=\"middle\" transform=\"rotate(-90 16 {middle})\">allocated, % of all devices</text>"
    );
}

fn column(load: u32) -> u32 {
    LEFT + load.min(LOAD_END) * PLOT_WIDTH / LOAD_END
}

fn row(allocated: u32) -> u32 {
    TOP + PLOT_HEIGHT - allocated.min(ALLOCATED_END) * PLOT_HEIGHT / ALLOCATED_END
}

fn at((load, allocated): (u32, u32)) -> String {
    format!("{},{}", column(load), row(allocated))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_whole_and_names_its_lines() {
        let line = |name: &str| Line {
            name: name.to_owned(),
            points: (0..5_000).map(|step| (step * 3, step * 2)).collect(),
        };
        let svg = draw("a < b", &[line("waste"), line("fgd & co")]);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("a &lt; b") && svg.contains(">waste<") && svg.contains("fgd &amp; co"));
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(svg.len() < 40_000);
    }
}
