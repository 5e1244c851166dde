/* tell(event): hands the structure in a bytearray to the tap symbol. Built for the stable ABI of CPython 3.8. */
#include <Python.h>

#include "tokengauge_tap.h"

static PyObject *tell(PyObject *module, PyObject *event) {
    (void)module;
    if (!PyByteArray_Check(event)) {
        PyErr_SetString(PyExc_TypeError, "tell() takes a bytearray");
        return NULL;
    }
    const struct tokengauge_event *e = (const struct tokengauge_event *)PyByteArray_AsString(event);
    size_t length = (size_t)PyByteArray_Size(event);
    if (length < TOKENGAUGE_TAP_FIXED) {
        PyErr_SetString(PyExc_ValueError, "the event is shorter than its fixed part");
        return NULL;
    }
    size_t told = (size_t)TOKENGAUGE_TAP_FIXED + e->request_len + e->model_len;
    tokengauge_tap_v1(e, told < length ? told : length);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"tell", tell, METH_O, "Hands the structure in a bytearray to the tap symbol."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_tap", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__tap(void) { return PyModule_Create(&definition); }
