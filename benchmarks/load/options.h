#ifndef OPTIONS_H
#define OPTIONS_H

#include "client.h"

/* Fills `options` from the command line, or ends the process with one line and status 2. */
void options_read(Options *options, int argc, char **argv);

/* Whether --header gives `name`, which replaces what the client would send by itself. */
bool options_has_header(const Options *options, const char *name);

#endif
