#include "bench_plot.h"

#include <math.h>
#include <stdio.h>

#include "base/text.h"
#include "bench_probe.h"

enum { WIDTH = 800, HEIGHT = 420, LEFT = 70, RIGHT = 190, TOP = 40, BOTTOM = 60, TICKS = 5 };
static const char *const colours[] = {"#1b6ca8", "#d1495b", "#3c8d40", "#e08e00",
                                      "#7b4fa3", "#008b8b", "#8c564b", "#555555"};
enum { COLOURS = sizeof colours / sizeof colours[0] };

ms_plot_series *ms_plot_add(ms_plot *p, const char *name, bool dashed) {
    ms_plot_series *s = &p->series[p->count < MS_PLOT_SERIES ? p->count++ : MS_PLOT_SERIES - 1];
    *s = (ms_plot_series){.dashed = dashed};
    (void)snprintf(s->name, sizeof s->name, "%s", name);
    for (size_t i = 0; i < MS_PLOT_POINTS; i++) s->y[i] = NAN;
    return s;
}

static void put_text(ms_text *t, double x, double y, const char *anchor, const char *text) {
    ms_text_printf(t, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    for (; *text; text++) switch (*text) {
        case '<':
            ms_text_puts(t, "&lt;");
            break;
        case '>':
            ms_text_puts(t, "&gt;");
            break;
        case '&':
            ms_text_puts(t, "&amp;");
            break;
        default:
            ms_text_append(t, text, 1);
        }
    ms_text_puts(t, "</text>\n");
}

/* 1, 2 or 5 times a power of ten, so that TICKS of them hold `most`. */
static double step_for(double most) {
    if (!(most > 0)) return 1;
    double raw = most / TICKS, power = pow(10, floor(log10(raw)));
    for (int i = 0; i < 3; i++) {
        static const double nice[] = {1, 2, 5};
        if (nice[i] * power >= raw * (1 - 1e-9)) return nice[i] * power;
    }
    return 10 * power;
}

static double x_of(const ms_plot *p, size_t i) {
    double width = WIDTH - LEFT - RIGHT;
    return p->points > 1 ? LEFT + width * (double)i / (double)(p->points - 1) : LEFT + width / 2;
}

static void put_axes(ms_text *t, const ms_plot *p, double step, double scale) {
    double bottom = HEIGHT - BOTTOM, right = WIDTH - RIGHT;
    for (int i = 0; i <= TICKS; i++) {
        char text[32];
        double y = bottom - scale * step * i;
        ms_text_printf(t, "<path d=\"M%d %.1fH%.1f\" stroke=\"#ddd\"/>\n", LEFT, y, right);
        (void)snprintf(text, sizeof text, "%g", step * i);
        put_text(t, LEFT - 8, y + 4, "end", text);
    }
    for (size_t i = 0; i < p->points; i++) put_text(t, x_of(p, i), bottom + 18, "middle", p->x[i]);
    put_text(t, (LEFT + right) / 2, HEIGHT - 16, "middle", p->x_name);
    put_text(t, LEFT, TOP - 24, "start", p->title);
    put_text(t, LEFT - 60, TOP - 6, "start", p->y_name);
}

static void put_series(ms_text *t, const ms_plot *p, size_t number, double scale) {
    const ms_plot_series *s = &p->series[number];
    const char *colour = colours[number % COLOURS], *dashes = s->dashed ? " stroke-dasharray=\"6 4\"" : "";
    double bottom = HEIGHT - BOTTOM, right = WIDTH - RIGHT, key = TOP + 8 + 18 * (double)number;
    bool pen = false;
    ms_text_printf(t, "<path fill=\"none\" stroke-width=\"2\" stroke=\"%s\"%s d=\"", colour, dashes);
    for (size_t i = 0; i < p->points; i++) {
        if (isfinite(s->y[i])) ms_text_printf(t, "%c%.1f %.1f", pen ? 'L' : 'M', x_of(p, i), bottom - scale * s->y[i]);
        pen = isfinite(s->y[i]);
    }
    ms_text_puts(t, "\"/>\n");
    for (size_t i = 0; i < p->points; i++)
        if (isfinite(s->y[i]))
            ms_text_printf(t, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", x_of(p, i),
                           bottom - scale * s->y[i], colour);
    ms_text_printf(t, "<path stroke-width=\"2\" stroke=\"%s\"%s d=\"M%.1f %.1fh24\"/>\n", colour, dashes, right + 14,
                   key);
    put_text(t, right + 44, key + 4, "start", s->name);
}

ms_status ms_plot_save(const ms_plot *p, const char *path, ms_error *err) {
    ms_text t = {0};
    double most = 0;
    if (!path) return MS_OK;
    for (size_t i = 0; i < p->count; i++)
        for (size_t j = 0; j < p->points; j++)
            if (isfinite(p->series[i].y[j]) && p->series[i].y[j] > most) most = p->series[i].y[j];
    double step = step_for(most), scale = (HEIGHT - TOP - BOTTOM) / (step * TICKS);
    ms_text_printf(
        &t,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
        WIDTH, HEIGHT, WIDTH, HEIGHT);
    put_axes(&t, p, step, scale);
    for (size_t i = 0; i < p->count; i++) put_series(&t, p, i, scale);
    ms_text_puts(&t, "</svg>\n");
    ms_status st = ms_probe_save_file(path, &t, err);
    ms_text_free(&t);
    return st;
}
