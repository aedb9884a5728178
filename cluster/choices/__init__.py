"""From a request to the choices that answer it, whatever engine decodes them: prompts, formats of answers, text."""
