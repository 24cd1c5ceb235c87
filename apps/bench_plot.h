/* bench_plot.h: a line plot as an SVG file, for the figures of `moonshine bench`.
 *
 * Points stand at equal distances under their labels; the value axis begins at 0.  The file needs nothing else and its
 * size does not depend on the values.
 */
#ifndef MS_APPS_BENCH_PLOT_H
#define MS_APPS_BENCH_PLOT_H

#include "base/error.h"

enum { MS_PLOT_POINTS = 32, MS_PLOT_SERIES = 16, MS_PLOT_NAME = 48 };

typedef struct ms_plot_series {
    char name[MS_PLOT_NAME];
    double y[MS_PLOT_POINTS]; /* not finite: no point */
    bool dashed;              /* a bound, not a measurement */
} ms_plot_series;

typedef struct ms_plot {
    char title[128], x_name[MS_PLOT_NAME], y_name[MS_PLOT_NAME];
    char x[MS_PLOT_POINTS][MS_PLOT_NAME];
    size_t points, count;
    ms_plot_series series[MS_PLOT_SERIES];
} ms_plot;

/* The next series, without points; the last one again when there is no room. */
ms_plot_series *ms_plot_add(ms_plot *p, const char *name, bool dashed);
/* Replaces the file.  NULL path: nothing. */
ms_status ms_plot_save(const ms_plot *p, const char *path, ms_error *err);

#endif
